package idem

import (
	"sync"
	"sync/atomic"
	"time"
)

// A shard holds the records whose hash chose it, and is the only thing that locks. What follows mu, and counts,
// is guarded by it; methods named ...Locked expect it held, the others take it. No user code runs and
// nothing blocks under the lock.
//
// The fields that every request touches lie side by side, from the last of counts to the first of wheel: a shard was most
// likely used by another processor before, from which each of its cache lines has to come (TestShardLines).
type shard struct {
	// hot is a copy of the record that is replayed most, or nil. Stored under mu, read without
	// it; on a cache line that lockers of other keys do not write to.
	hot        atomic.Pointer[hotRecord]
	hotCrowded atomic.Bool // several processors read it at a time
	_          [112]byte

	// hotHits counts replays of hot while it is not crowded; on a line of its own as well.
	hotHits atomic.Uint64
	_       [136]byte

	counts  counts // those of every request are its last
	mu      sync.Mutex
	closed  bool
	number  uint32 // among the engine's shards
	engine  *Engine
	index   index
	waiters map[ref]*waiters // keys that somebody waits for; all are in progress
	counted int              // bytes of this shard that are in the engine's total
	payload int              // estimate of the next response's size, bytes
	hotRef  ref              // the record that hot is a copy of
	hotNext ref              // the record replayed last
	hotSeen uint32           // how many times in a row

	// due is when the wheel next has work, in ns since the engine's start. Stored under mu; the sweeper
	// reads it without, to find the shards that want it.
	due   atomic.Int64
	wheel wheel
	arena arena
	_     [136]byte
}

// begin answers req or, when the caller has to wait, returns what to wait for.
func (s *shard) begin(req *Request, h uint32, out *Outcome) (*waiters, error) {
	contended := !s.mu.TryLock()
	if contended {
		s.mu.Lock()
	}
	r, rec := s.findLocked(h, req.Scope, req.Key)
	if r == 0 || rec.state() != flagDone || !s.engine.clock.far(rec.deadline()) {
		now := s.engine.clock.now()
		r, rec = s.settleLocked(r, rec, h, now)
		if r == 0 || rec.lapsed(now) {
			err := s.claimLocked(r, rec, req, h, now, out)
			s.mu.Unlock()
			return nil, err
		}
		if rec.state() != flagDone {
			w := s.duplicateLocked(r, rec, req, now, out)
			s.mu.Unlock()
			return w, nil
		}
	}
	if rec.fingerprint() != req.Fingerprint {
		s.counts.mismatched++
		s.mu.Unlock()
		out.State = Mismatch
		return nil, nil
	}
	s.counts.replayed++
	if s.counts.replayed%usedEvery == 0 {
		s.engine.wantClock()
	}
	s.heatLocked(r, rec, contended)
	out.State = Replay
	shared := s.viewLocked(r, rec, &out.Response, req.Buf)
	s.mu.Unlock()
	if shared {
		out.Response.clone(req.Buf)
	}
	return nil, nil
}

// findLocked returns the record of a key, whatever its state and deadline, or zero.
func (s *shard) findLocked(h uint32, scope, key string) (ref, record) {
	p := s.index.probe(h)
	for r := p.next(); r != 0; r = p.next() {
		if rec := s.arena.at(r); rec.named(scope, key) {
			return r, rec
		}
	}
	return 0, nil
}

// settleLocked brings a record up to what its deadline means at now, and returns it, or zero when it is
// gone. A lapsed claim goes to a waiter, or turns Unknown under Hold, or else stays as it is, since its
// owner may complete it until somebody takes over.
func (s *shard) settleLocked(r ref, rec record, h uint32, now int64) (ref, record) {
	if r == 0 || rec.deadline() > now {
		return r, rec
	}
	if rec.state() == flagInProgress {
		if s.engine.cfg.OnLeaseExpiry == TakeOver {
			if w := s.waiters[r]; w != nil {
				s.lapseLocked()
				s.handOverLocked(r, rec, w, now)
			}
			return r, rec
		}
		s.lapseLocked()
		s.counts.inProgress--
		rec.setState(flagUnknown)
		s.rescheduleLocked(r, rec, after(rec.deadline(), s.engine.cfg.TTL), now)
		s.wakeAllLocked(r)
		if rec.deadline() > now {
			return r, rec
		}
	}
	s.counts.expired++
	s.removeLocked(r, rec, h)
	return 0, nil
}

// lapseLocked notes that a lease ran out.
func (s *shard) lapseLocked() {
	s.counts.leasesExpired++
	s.engine.lapsed.Add(1)
}

// reclaimLocked is settleLocked that takes a lapsed claim away as well.
func (s *shard) reclaimLocked(r ref, rec record, h uint32, now int64) (ref, record) {
	r, rec = s.settleLocked(r, rec, h, now)
	if r == 0 || !rec.lapsed(now) {
		return r, rec
	}
	s.lapseLocked()
	s.removeLocked(r, rec, h)
	return 0, nil
}

// claimLocked grants req a claim: on the lapsed record r, or on a new one when r is zero.
func (s *shard) claimLocked(r ref, rec record, req *Request, h uint32, now int64, out *Outcome) error {
	if s.closed {
		return ErrClosed
	}
	if r != 0 {
		s.lapseLocked()
		s.wheel.remove(&s.arena, r)
	} else {
		if s.due.Load() <= now {
			s.expireLocked(now, helpSlice)
		}
		size := recordSize(req.Scope, req.Key, s.payload)
		if err := s.admitLocked(size); err != nil {
			s.counts.refused++
			return err
		}
		r, rec = s.createLocked(req.Scope, req.Key, h, size)
	}
	lease := orDefault(req.Lease, s.engine.cfg.Lease)
	rec.claim(s.engine.tokens.Add(1), req.Fingerprint, now)
	s.scheduleLocked(r, rec, after(now, lease), now)
	s.freshLocked(rec, req, lease, out)
	return nil
}

// freshLocked tells the caller that it owns rec.
func (s *shard) freshLocked(rec record, req *Request, lease time.Duration, out *Outcome) {
	s.counts.fresh++
	out.State = Fresh
	out.Remaining = lease
	out.Claim = Claim{
		Scope: req.Scope, Key: req.Key, Token: rec.token(), Fingerprint: req.Fingerprint,
		origin: s.engine,
	}
}

// duplicateLocked answers a caller whose key is in progress or unknown, or registers it as a waiter.
func (s *shard) duplicateLocked(r ref, rec record, req *Request, now int64, out *Outcome) *waiters {
	switch {
	case rec.fingerprint() != req.Fingerprint:
		s.counts.mismatched++
		out.State = Mismatch
		return nil
	case rec.state() == flagUnknown:
		s.counts.unknown++
		out.State = Unknown
		return nil
	}
	if req.Wait {
		if w := s.joinLocked(r); w != nil {
			s.counts.waited++
			return w
		}
	}
	s.counts.duplicates++
	out.State = InProgress
	out.Remaining = time.Duration(rec.deadline() - now)
	return nil
}

// take turns the grant of token that a waiter received into its claim. A waiter whose ctx is done passes it
// on. It reports false when the grant is void, because the waiter took too long to come.
func (s *shard) take(w *waiters, token uint64, done bool, req *Request, h uint32, out *Outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partLocked(w)
	r, rec := s.findLocked(h, req.Scope, req.Key)
	if r != 0 && rec.token() != token {
		// The claim was taken from this waiter before he came for it. If it passed to the next one, and
		// that is nobody else, it would lie there until its lease ends.
		select {
		case token = <-w.grant:
		default:
		}
	}
	if r == 0 || rec.token() != token || rec.state() != flagInProgress {
		return false
	}
	now := s.engine.clock.now()
	if done {
		s.yieldLocked(r, rec, h, now)
		return false
	}
	lease := orDefault(req.Lease, s.engine.cfg.Lease)
	s.rescheduleLocked(r, rec, after(now, lease), now)
	s.freshLocked(rec, req, lease, out)
	return true
}

// leave takes a waiter off whose ctx ended. A grant that is on its way to nobody else is passed on.
func (s *shard) leave(w *waiters, req *Request, h uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.waiters[w.key] == w // otherwise grant is closed
	s.partLocked(w)
	if !current || w.n > 0 {
		return
	}
	select {
	case token := <-w.grant:
		r, rec := s.findLocked(h, req.Scope, req.Key)
		if r != 0 && rec.token() == token && rec.state() == flagInProgress {
			s.yieldLocked(r, rec, h, s.engine.clock.now())
		}
	default:
	}
}

// currentLocked finds the record that c may change. ErrClaimLost: another claim has the key. Zero and no
// error: nobody has it.
func (s *shard) currentLocked(c *Claim, h uint32, now int64) (ref, record, error) {
	if s.closed {
		return 0, nil, ErrClosed
	}
	r, rec := s.findLocked(h, c.Scope, c.Key)
	switch {
	case r == 0:
	case rec.token() != c.Token:
		// Another's lapsed claim is no hindrance, whether the sweeper has come by or not.
		r, rec = s.reclaimLocked(r, rec, h, now)
	case rec.state() != flagInProgress:
		r, rec = s.settleLocked(r, rec, h, now)
	}
	if r != 0 && rec.token() != c.Token {
		s.counts.lost++
		return 0, nil, ErrClaimLost
	}
	return r, rec, nil
}

// complete records resp, and reports whether what is recorded, by now or before, is cut. own is the cell for a response too
// large to share a slab, see [Engine.ownCell].
func (s *shard) complete(c *Claim, h uint32, resp *Response, own record) (truncated bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.engine.clock.now()
	r, rec, err := s.currentLocked(c, h, now)
	switch {
	case err != nil:
		return false, err
	case r == 0:
		r, rec = s.restoreLocked(c, h, now)
	case rec.state() == flagDone:
		return rec.flags()&flagTruncated != 0, nil
	}
	s.finishLocked(r, rec, h, resp, s.fitLocked(resp, own), now)
	return resp.Truncated, nil
}

// abandon frees the key for a waiter or the next caller.
func (s *shard) abandon(c *Claim, h uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.engine.clock.now()
	r, rec, err := s.currentLocked(c, h, now)
	if err != nil || r == 0 || rec.state() == flagDone {
		return err
	}
	s.counts.abandoned++
	s.yieldLocked(r, rec, h, now)
	return nil
}

// extend moves the lease's end.
func (s *shard) extend(c *Claim, h uint32, lease time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.engine.clock.now()
	r, rec, err := s.currentLocked(c, h, now)
	if err != nil {
		return err
	}
	switch {
	case r == 0:
		r, rec = s.restoreLocked(c, h, now)
	case rec.state() == flagDone:
		s.counts.lost++
		return ErrClaimLost
	case rec.state() == flagUnknown:
		rec.setState(flagInProgress)
		s.counts.inProgress++
	}
	s.counts.extended++
	s.rescheduleLocked(r, rec, after(now, orDefault(lease, s.engine.cfg.Lease)), now)
	return nil
}

// forget erases the key's record, or takes the claim away.
func (s *shard) forget(scope, key string, h uint32) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	now := s.engine.clock.now()
	r, rec := s.findLocked(h, scope, key)
	if r, rec = s.reclaimLocked(r, rec, h, now); r == 0 {
		return false, nil
	}
	s.counts.forgotten++
	s.yieldLocked(r, rec, h, now)
	return true, nil
}

// resolve records resp in the owner's stead, under a token of its own.
func (s *shard) resolve(scope, key string, h uint32, resp *Response, own record) (truncated bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	now := s.engine.clock.now()
	r, rec := s.findLocked(h, scope, key)
	if r, rec = s.reclaimLocked(r, rec, h, now); r == 0 || rec.state() == flagDone {
		return false, ErrNoClaim
	}
	s.counts.resolved++
	rec.setToken(s.engine.tokens.Add(1))
	s.finishLocked(r, rec, h, resp, s.fitLocked(resp, own), now)
	return resp.Truncated, nil
}

// fitLocked returns own, or cuts resp and returns nil when that would take one of the last numbers of slabs.
func (s *shard) fitLocked(resp *Response, own record) record {
	if own != nil && s.arena.crowded() {
		resp.Header, resp.Body, resp.Truncated = nil, nil, true
		return nil
	}
	return own
}

// expire reclaims what is due at now, but at most budget records, so that nobody waits long for the lock.
// It reports whether more is due.
func (s *shard) expire(now int64, budget int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expireLocked(max(now, s.wheel.time()), budget) // a Begin may have come later and yet been first
}

func (s *shard) expireLocked(now int64, budget int) bool {
	for r := s.wheel.pop(&s.arena, now, &budget); r != 0; r = s.wheel.pop(&s.arena, now, &budget) {
		rec := s.arena.at(r)
		s.reclaimLocked(r, rec, s.engine.hashOf(rec), now)
	}
	next := s.wheel.next()
	s.due.Store(next)
	return next <= now
}

// close drops everything and wakes all who wait.
func (s *shard) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.coolLocked()
	for r := range s.waiters {
		s.wakeAllLocked(r)
	}
	s.index, s.arena, s.wheel = index{}, arena{}, wheel{}
	s.hotNext, s.counts.inProgress = 0, 0
	s.accountLocked()
	s.due.Store(never)
}
