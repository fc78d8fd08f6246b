package idem

import (
	"sync"
	"sync/atomic"
	"time"
)

// A hotRecord is an immutable copy of a done record that is replayed so often that its readers queue
// for the shard's lock. A Begin that finds its answer here takes no lock and, once readers meet,
// writes to no memory that another core uses. The copy is withdrawn, under the lock, before its record changes: a reader that
// still sees it began before the change.
type hotRecord struct {
	scope, key  string
	fingerprint Fingerprint
	deadline    int64
	shard       *shard

	status            int
	failed, truncated bool
	storedAt          time.Time
	payload           []byte
	header            int // how much of payload is the header
}

// maxHot bounds the copy, in bytes of payload: copying a large one takes longer than the lock.
const maxHot = 16 << 10

// replayHot answers req from the shard's hot record, if it is the one.
func (s *shard) replayHot(req *Request, out *Outcome) bool {
	h := s.hot.Load()
	return h != nil && h.replay(req, out)
}

// replay answers req, if it asks for this record and its deadline is far.
func (h *hotRecord) replay(req *Request, out *Outcome) bool {
	if h.key != req.Key || h.scope != req.Scope || h.fingerprint != req.Fingerprint {
		return false
	}
	s := h.shard
	if !s.engine.clock.far(h.deadline) {
		return false
	}
	out.State = Replay
	resp := &out.Response
	resp.Status, resp.Failed, resp.Truncated, resp.StoredAt = h.status, h.failed, h.truncated, h.storedAt
	resp.split(append(payloadBuf(req.Buf, len(h.payload)), h.payload...), h.header)
	s.countHit()
	return true
}

// countHit counts a replay of the hot record. As long as its readers do not meet, a counter of the shard does, which
// costs half of finding the processor's own.
func (s *shard) countHit() {
	if !s.hotCrowded.Load() {
		n := s.hotHits.Load() + 1
		if s.hotHits.CompareAndSwap(n-1, n) {
			s.engine.clock.use(n)
			return
		}
		s.hotCrowded.Store(true)
	}
	s.engine.hits.add(&s.engine.clock)
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
	var resp Response
	s.engine.describe(rec, &resp)
	h := &hotRecord{
		scope: string(rec.scope()), key: string(rec.key()), fingerprint: rec.fingerprint(), deadline: rec.deadline(),
		shard: s, status: resp.Status, failed: resp.Failed, truncated: resp.Truncated, storedAt: resp.StoredAt,
		payload: append([]byte(nil), payload...), header: rec.headerLen(),
	}
	s.hotRef = r
	s.hot.Store(h)
	s.engine.hottest.Store(h)
}

// withdrawLocked must come before any change to r.
func (s *shard) withdrawLocked(r ref) {
	if s.hotNext == r {
		s.hotNext = 0
	}
	if s.hotRef == r {
		s.coolLocked()
	}
}

// coolLocked withdraws the hot record. Only its own shard stores it in hottest, under the lock, so that it cannot
// come back.
func (s *shard) coolLocked() {
	s.engine.hottest.CompareAndSwap(s.hot.Load(), nil)
	s.hot.Store(nil)
	s.hotRef = 0
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
	c.use(counter.n.Add(1))
	h.pool.Put(counter)
}

func (h *hits) total() (n uint64) {
	for i := range h.counters {
		n += h.counters[i].n.Load()
	}
	return n
}
