// Package load is what a rival's process does: it fills a store, runs short blocks of work on it, and tells what
// they cost. A [Session] is not for use by several goroutines at once.
package load

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

const (
	// long is how long records live that are not to expire.
	long = 24 * time.Hour

	// short is how long records live in a fresh cycle: a second, the smallest unit that all who expire know.
	short = time.Second

	// ringTTL and ring are for rivals that never give memory back: their keys come round again, so that they
	// hold about as many records as the others do when those expire as fast as they come.
	ringTTL = 250 * time.Millisecond
	ring    = 1_000_000

	// perRecord is a generous bound for what a record costs the heap while a store is filled with the collector
	// off, in bytes. Only beyond it does the collector run.
	perRecord = 900

	// cheapCollection, in ms: below it a collection is measured again, as the first one after filling sweeps too.
	cheapCollection = 500
)

// Values are the results of one step by their names, which say the unit.
type Values map[string]float64

// A Session is one rival's store and the records in it.
type Session struct {
	rival   rival.Rival
	store   rival.Store
	ttl     time.Duration
	records int
	live    int           // the keys 0 … live-1 are done and do not expire
	fresh   atomic.Uint64 // number of the next fresh key
	zipf    []uint32
	took    []uint32

	residentBefore, heapBefore int64
}

// churnKeys and zipfKeys are where the numbers of fresh keys begin, far above those of live ones.
const (
	churnKeys = 1 << 40
	zipfKeys  = 1 << 41
	goneKeys  = 1 << 42
	waitKeys  = 1 << 43
)

// Open opens the rival's store for so many records. With churn, all of them are to expire soon.
func Open(r rival.Rival, records int, churn bool) (*Session, error) {
	s := &Session{rival: r, records: records, ttl: long}
	if churn {
		s.ttl = short
	}
	if churn && r.Expiry == rival.Never {
		s.ttl = ringTTL
	}
	debug.FreeOSMemory()
	s.residentBefore, s.heapBefore = resident(), heap()
	store, err := r.Open(rival.Options{Records: records, TTL: s.ttl})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", r.Name, err)
	}
	s.store = store
	return s, nil
}

// Close ends the store's goroutines.
func (s *Session) Close() { s.store.Close() }

// Fill completes keys until live of them are there. The collector is off meanwhile, and stays so until Settle:
// it would only look at what grows, many times over.
func (s *Session) Fill(live int) error {
	debug.SetMemoryLimit(int64(64<<20 + perRecord*live))
	debug.SetGCPercent(-1)
	var k rival.Key
	for ; s.live < live; s.live++ {
		if err := s.cycle(k.At(uint64(s.live)), long); err != nil {
			return err
		}
	}
	return nil
}

// Settle returns what the records cost the heap, the process, and one collection, and turns the collector on.
func (s *Session) Settle() Values {
	first := collect(debug.FreeOSMemory)
	v := Values{"gc cpu-ms": first}
	if s.live > 0 {
		v["resident B/record"] = float64(resident()-s.residentBefore) / float64(s.live)
		v["heap B/record"] = float64(heap()-s.heapBefore) / float64(s.live)
	}
	if first < cheapCollection {
		more := []float64{collectNow(), collectNow(), collectNow()}
		slices.Sort(more)
		v["gc cpu-ms"] = more[1]
	}
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(100)
	return v
}

var body = func() []byte {
	b := make([]byte, rival.BodyBytes)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// cycle runs one operation that must be fresh.
func (s *Session) cycle(key string, ttl time.Duration) error {
	state, _, claim := s.store.Begin(key, nil)
	if state != rival.Fresh {
		return fmt.Errorf("%s: a fresh key is answered %v", s.rival.Name, state)
	}
	s.store.Complete(key, claim, body, ttl)
	return nil
}

// replay asks for key i, which must be done. A rival that may drop live records may have lost it.
func (s *Session) replay(k *rival.Key, i uint64, buf []byte) (lost bool, err error) {
	return s.replayKey(k.At(i), buf)
}

func (s *Session) replayKey(key string, buf []byte) (lost bool, err error) {
	state, got, claim := s.store.Begin(key, buf)
	if state == rival.Replay && len(got) == rival.BodyBytes {
		return false, nil
	}
	if !s.rival.Lossy {
		return false, fmt.Errorf("%s: the replay of a live key is answered %v, with %d bytes", s.rival.Name, state, len(got))
	}
	if state == rival.Fresh { // the operation would run again; recording it is the least that this costs
		s.store.Complete(key, claim, body, long)
	}
	return true, nil
}

// errUnknown is for a workload that a rival's process does not know.
var errUnknown = errors.New("unknown workload")
