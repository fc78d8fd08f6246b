package rival

import (
	"context"
	"time"

	"github.com/allegro/bigcache/v3"
)

var bigCacheRival = Rival{
	Name: "bigcache", Module: "github.com/allegro/bigcache/v3",
	Claim: "256 mutexes around it: it has nothing atomic", Expiry: PerStore, Lossy: true, Open: openBigCache,
}

type bigCache struct {
	c     *bigcache.BigCache
	locks *stripes
}

// openBigCache leaves the size open, so that only two keys of one hash make it lose a live record.
func openBigCache(o Options) (Store, error) {
	cfg := bigcache.DefaultConfig(o.TTL)
	cfg.CleanWindow = time.Second // its resolution
	cfg.MaxEntriesInWindow, cfg.MaxEntrySize = cfg.Shards, 300
	cfg.Verbose = false
	c, err := bigcache.New(context.Background(), cfg)
	return bigCache{c, newStripes()}, err
}

// get answers for a live record. The library copies it first.
func (s bigCache) get(key string, buf []byte) (State, []byte, bool) {
	record, err := s.c.Get(key)
	if err != nil {
		return Fresh, buf, false
	}
	body, live := parse(record)
	if live && len(body) > 0 {
		return Replay, append(buf[:0], body...), true
	}
	return InProgress, buf, live
}

func (s bigCache) Begin(key string, buf []byte) (State, []byte, Claim) {
	if state, body, ok := s.get(key, buf); ok {
		return state, body, Claim{}
	}
	lock := s.locks.of(key)
	lock.Lock()
	defer lock.Unlock()
	if state, body, ok := s.get(key, buf); ok {
		return state, body, Claim{}
	}
	var claim [trailer]byte
	s.set(key, record(claim[:0], nil, lease))
	return Fresh, buf, Claim{}
}

func (s bigCache) Complete(key string, _ Claim, body []byte, ttl time.Duration) {
	var space [BodyBytes + trailer]byte
	s.set(key, record(space[:0], body, ttl))
}

func (s bigCache) set(key string, record []byte) {
	if err := s.c.Set(key, record); err != nil {
		panic("bigcache: " + err.Error()) // it has no limit here
	}
}

func (s bigCache) Close() { _ = s.c.Close() }
