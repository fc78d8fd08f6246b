package rival

import (
	"hash/maphash"
	"sync"
	"time"
	"unsafe"
)

// An entry is the record of libraries that keep Go values and no time of their own. Entries are replaced, not
// changed, so that a response may be copied outside of a lock.
type entry struct {
	body     []byte // nil while in progress
	deadline int64  // as of now
}

func (e entry) live(t int64) bool { return t < e.deadline }

// answer is that of a live record with this body.
func answer(body, buf []byte) (State, []byte, Claim) {
	if body == nil {
		return InProgress, buf, Claim{}
	}
	return Replay, append(buf[:0], body...), Claim{}
}

// clone copies a response; it is never nil.
func clone(body []byte) []byte { return append(make([]byte, 0, len(body)), body...) }

var start = time.Now()

// now is a monotonic time in nanoseconds: cheaper to read than a time.Now.
func now() int64 { return int64(time.Since(start)) }

// seconds rounds up for libraries that count whole seconds from the last full one, so that no record ends early.
func seconds(ttl time.Duration) int { return int((ttl+time.Second-1)/time.Second) + 1 }

// bytesOf is s for libraries that take bytes and only read them: a conversion would copy every key.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// stripes are the locks around a look-up and the claim that follows from it, for libraries that can do neither
// in one step with the other. There are so many that two goroutines seldom meet.
type stripes struct {
	seed  maphash.Seed
	locks [256]struct {
		sync.Mutex
		_ [56]byte // one lock to a cache line
	}
}

func newStripes() *stripes { return &stripes{seed: maphash.MakeSeed()} }

func (s *stripes) number(key string) uint64 {
	return maphash.String(s.seed, key) % uint64(len(s.locks))
}

func (s *stripes) of(key string) *sync.Mutex { return &s.locks[s.number(key)].Mutex }
