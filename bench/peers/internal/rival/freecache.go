package rival

import (
	"time"

	"github.com/coocood/freecache"
)

var freeCacheRival = Rival{
	Name: "freecache", Module: "github.com/coocood/freecache", Claim: "GetOrSet", Lossy: true, Open: openFreeCache,
}

// freeCache keeps the time itself, in whole seconds. A record is the body and a byte that tells it from a claim;
// a claim is as large as the response to come, so that Complete overwrites it in place: freecache would move a
// record that grows, and lose live ones sooner.
type freeCache struct{ c *freecache.Cache }

const (
	claimed byte = iota
	completed
)

// openFreeCache gives it a third more than the records need, as its 256 segments fill unevenly.
func openFreeCache(o Options) (Store, error) {
	const header, key = 24, 36
	return freeCache{freecache.NewCache(o.Records * (header + key + BodyBytes + 1) / 3 * 4)}, nil
}

func (s freeCache) Begin(key string, buf []byte) (State, []byte, Claim) {
	k := bytesOf(key)
	if record, err := s.c.GetWithBuf(k, buf[:cap(buf)]); err == nil {
		return s.answer(record, buf)
	}
	var claim [BodyBytes + 1]byte
	record, err := s.c.GetOrSet(k, claim[:], seconds(lease))
	if err != nil {
		panic("freecache: " + err.Error()) // the record is far smaller than a segment
	}
	if record != nil {
		return s.answer(record, buf)
	}
	return Fresh, buf, Claim{}
}

func (freeCache) answer(record, buf []byte) (State, []byte, Claim) {
	last := len(record) - 1
	if record[last] == claimed {
		return InProgress, buf, Claim{}
	}
	return Replay, append(buf[:0], record[:last]...), Claim{}
}

func (s freeCache) Complete(key string, _ Claim, body []byte, ttl time.Duration) {
	var space [BodyBytes + 1]byte
	if err := s.c.Set(bytesOf(key), append(append(space[:0], body...), completed), seconds(ttl)); err != nil {
		panic("freecache: " + err.Error())
	}
}

func (s freeCache) Close() {}
