package idem

import (
	"sync"
	"sync/atomic"
)

// A hotRecord is an immutable copy of a done record that is replayed so often that its readers queue
// for the shard's lock. A Begin that finds its answer here takes no lock and writes to no memory that
// another core reads. The copy is withdrawn, under the lock, before its record changes: a reader that
// still sees it began before the change.
type hotRecord struct {
	scope, key  string
	fingerprint Fingerprint
	deadline    int64
	response    Response // Header and Body lie in one piece, payload
	payload     []byte
}

// maxHot bounds the copy, in bytes of payload: copying a large one takes longer than the lock.
const maxHot = 16 << 10

// replayHot answers req from the hot record, if it is the one.
func (s *shard) replayHot(req *Request, out *Outcome) bool {
	h := s.hot.Load()
	if h == nil || h.key != req.Key || h.scope != req.Scope || h.fingerprint != req.Fingerprint {
		return false
	}
	if !s.engine.clock.far(h.deadline) {
		return false
	}
	s.engine.hits.add(&s.engine.clock)
	out.State = Replay
	out.Response = h.response
	out.Response.split(append(payloadBuf(req.Buf, len(h.payload)), h.payload...), len(h.response.Header))
	return true
}

// A record is hot when it is replayed so many times without another of its shard in between: hotRun, or
// hotContended when others already queue for the lock.
const (
	hotRun       = 8
	hotContended = 2
)

// heatLocked counts the replays of r in a row, and publishes it when it is hot.
func (s *shard) heatLocked(r ref, rec record, contended bool) {
	if s.hotNext != r {
		s.hotNext, s.hotSeen = r, 0
	}
	s.hotSeen++
	if s.hotSeen == hotRun || contended && s.hotSeen >= hotContended {
		s.publishLocked(r, rec)
	}
}

// publishLocked makes the hot record a copy of rec.
func (s *shard) publishLocked(r ref, rec record) {
	payload := rec.payload()
	if s.hotRef == r || len(payload) > maxHot {
		return
	}
	h := &hotRecord{
		scope: string(rec.scope()), key: string(rec.key()), fingerprint: rec.fingerprint(),
		deadline: rec.deadline(), payload: append([]byte(nil), payload...),
	}
	s.engine.describe(rec, &h.response)
	h.response.split(h.payload, rec.headerLen())
	s.hotRef = r
	s.hot.Store(h)
}

// withdrawLocked must come before any change to r.
func (s *shard) withdrawLocked(r ref) {
	if s.hotNext == r {
		s.hotNext = 0
	}
	if s.hotRef == r {
		s.hot.Store(nil)
		s.hotRef = 0
	}
}

// hits counts replays of hot records. Each processor finds a counter through the pool, so that counting does
// not undo what not locking won. The pool may drop its reference to a counter, but hits keeps them all; they
// are more than there are processors, so that two seldom come to share one when the pool asks for another.
type hits struct {
	pool     sync.Pool
	taken    atomic.Uint32
	counters []hitCounter
}

// A hitCounter fills two cache lines, because processors fetch lines in pairs.
type hitCounter struct {
	n atomic.Uint64
	_ [120]byte
}

// hitCounters is how many there are for each processor.
const hitCounters = 8

func (h *hits) init(processors int) {
	h.counters = make([]hitCounter, processors*hitCounters)
	h.pool.New = func() any {
		return &h.counters[h.taken.Add(1)%uint32(len(h.counters))]
	}
}

func (h *hits) add(c *clock) {
	counter := h.pool.Get().(*hitCounter)
	if counter.n.Add(1)%usedEvery == 0 && !c.wanted.Load() {
		c.wanted.Store(true)
	}
	h.pool.Put(counter)
}

func (h *hits) total() (n uint64) {
	for i := range h.counters {
		n += h.counters[i].n.Load()
	}
	return n
}
