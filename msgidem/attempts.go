package msgidem

import (
	"sync"
	"sync/atomic"
)

// maxTracked bounds the messages that attempts remembers: many more than the messages that brokers leave
// unacknowledged with one consumer (1000 on JetStream), and with IDs of 36 bytes about 10 MB.
const maxTracked = 1 << 16

// attempts remembers of messages that were given back what the broker does not tell. It is for counting
// only: a message that it forgot, since there were too many or the process was restarted, has the attempts
// that the broker counts. So it is no reason to refuse one a run.
type attempts struct {
	tracked atomic.Int64 // how many there are, so that as long as there is none nobody locks
	mu      sync.Mutex   // guards what follows

	// Two generations bound the memory without a list of who was used last: when the young one is full it
	// becomes the old one, and what nobody asked for in the meantime is dropped.
	young, old map[messageKey]history
}

type messageKey struct{ scope, id string }

// A history is what happened to one message in this process.
type history struct {
	failed int   // times that its handler failed
	unrun  int   // deliveries that came to nothing through no fault of the message
	doom   error // why it is a dead letter that was not accepted so far; nil if it is none
}

// of returns the message's history, and the number of its present attempt.
func (a *attempts) of(m *Message) (history, int) {
	if a.tracked.Load() == 0 {
		return history{}, max(m.Attempt, 1)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := messageKey{m.Scope, m.ID}
	h, ok := a.young[k]
	if !ok {
		h = a.old[k]
	}
	return h, max(h.failed+1, m.Attempt-h.unrun)
}

// change applies f to the message's history.
func (a *attempts) change(m *Message, f func(*history)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := messageKey{m.Scope, m.ID}
	h, ok := a.young[k]
	if !ok {
		h = a.old[k]
		delete(a.old, k)
	}
	f(&h)
	if len(a.young) >= maxTracked/2 {
		a.old, a.young = a.young, nil
	}
	if a.young == nil {
		a.young = make(map[messageKey]history)
	}
	a.young[k] = h
	a.tracked.Store(int64(len(a.young) + len(a.old)))
}

// forget drops the history of a message that is settled.
func (a *attempts) forget(m *Message) {
	if a.tracked.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := messageKey{m.Scope, m.ID}
	delete(a.young, k)
	delete(a.old, k)
	a.tracked.Store(int64(len(a.young) + len(a.old)))
}
