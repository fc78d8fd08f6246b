package rival

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var mutexMapRival = Rival{
	Name: "mutex+map", Claim: "the mutex", Expiry: Never,
	Open: func(Options) (Store, error) {
		return &mutexMap{entries: map[string]entry{}, waiters: map[string]chan struct{}{}}, nil
	},
}

// mutexMap is what one writes first.
type mutexMap struct {
	mu      sync.Mutex
	entries map[string]entry
	waiters map[string]chan struct{} // closed when the key completes; only keys somebody waits for
	waiting atomic.Int64
}

func (m *mutexMap) Begin(key string, buf []byte) (State, []byte, Claim) {
	m.mu.Lock()
	t := now()
	e := m.entries[key]
	if e.live(t) {
		m.mu.Unlock()
		return answer(e.body, buf)
	}
	key = strings.Clone(key)
	m.entries[key] = entry{deadline: t + int64(lease)}
	m.mu.Unlock()
	return Fresh, buf, Claim{Key: key}
}

func (m *mutexMap) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	body = clone(body)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[c.Key] = entry{body, now() + int64(ttl)}
	if len(m.waiters) == 0 {
		return
	}
	if w := m.waiters[c.Key]; w != nil {
		delete(m.waiters, c.Key)
		close(w)
	}
}

func (m *mutexMap) Wait(key string, buf []byte) []byte {
	m.mu.Lock()
	e := m.entries[key]
	if e.body != nil {
		m.mu.Unlock()
		return append(buf[:0], e.body...)
	}
	w := m.waiters[key]
	if w == nil {
		w = make(chan struct{})
		m.waiters[strings.Clone(key)] = w
	}
	m.waiting.Add(1)
	m.mu.Unlock()
	<-w
	m.waiting.Add(-1)
	return m.Wait(key, buf)
}

func (m *mutexMap) Waiting() int { return int(m.waiting.Load()) }
func (m *mutexMap) Close()       {}
