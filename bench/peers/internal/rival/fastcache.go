package rival

import (
	"time"

	"github.com/VictoriaMetrics/fastcache"
)

var fastCacheRival = Rival{
	Name: "fastcache", Module: "github.com/VictoriaMetrics/fastcache",
	Claim: "256 mutexes around it: it has nothing atomic", Expiry: Never, Lossy: true, Open: openFastCache,
}

type fastCache struct {
	c     *fastcache.Cache
	locks *stripes
}

// openFastCache sizes it for a claim and a response of each record, as it only appends, and a fifth more, as its
// 512 buckets fill unevenly. What comes beyond that overwrites the oldest.
func openFastCache(o Options) (Store, error) {
	const claim, response = 4 + 36 + trailer, 4 + 36 + BodyBytes + trailer
	return fastCache{fastcache.New(o.Records * (claim + response) / 5 * 6), newStripes()}, nil
}

func (s fastCache) get(key, buf []byte) (State, []byte, bool) {
	record, ok := s.c.HasGet(buf[:0], key)
	if !ok {
		return Fresh, buf, false
	}
	body, live := parse(record)
	if live && len(body) > 0 {
		return Replay, body, true
	}
	return InProgress, buf, live
}

func (s fastCache) Begin(key string, buf []byte) (State, []byte, Claim) {
	k := bytesOf(key)
	if state, body, ok := s.get(k, buf); ok {
		return state, body, Claim{}
	}
	lock := s.locks.of(key)
	lock.Lock()
	defer lock.Unlock()
	if state, body, ok := s.get(k, buf); ok {
		return state, body, Claim{}
	}
	var claim [trailer]byte
	s.c.Set(k, record(claim[:0], nil, lease))
	return Fresh, buf, Claim{}
}

func (s fastCache) Complete(key string, _ Claim, body []byte, ttl time.Duration) {
	var space [BodyBytes + trailer]byte
	s.c.Set(bytesOf(key), record(space[:0], body, ttl))
}

// Close gives the memory back, which is not the collector's.
func (s fastCache) Close() { s.c.Reset() }
