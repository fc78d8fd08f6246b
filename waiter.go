package idem

import "context"

// waiters are the callers that wait for one key. They are made with the first of them and dropped with
// the last, so that keys nobody waits for cost nothing. Guarded by the shard's mu.
type waiters struct {
	// grant passes the claim on: one token for one waiter, which Go's channels give to the one that
	// has waited longest. Closing it tells everybody to look again. Only holders of mu send, receive
	// ones that nobody has taken yet, and close.
	grant chan uint64

	key ref // the record waited for, which is in progress
	n   int // callers
}

// joinLocked registers a caller that waits for r. Nil means that there are too many.
func (s *shard) joinLocked(r ref) *waiters {
	w := s.waiters[r]
	if w != nil && w.n >= s.engine.cfg.MaxWaitersPerKey {
		return nil
	}
	if s.engine.waiting.Add(1) > int64(s.engine.cfg.MaxWaiters) {
		s.engine.waiting.Add(-1)
		return nil
	}
	if w == nil {
		w = &waiters{grant: make(chan uint64, 1), key: r}
		if s.waiters == nil {
			s.waiters = make(map[ref]*waiters)
		}
		s.waiters[r] = w
	}
	w.n++
	return w
}

// await blocks until the caller owns the key, which it reports, or has to look again, or ctx is done.
func (s *shard) await(ctx context.Context, w *waiters, req *Request, h uint32, out *Outcome) (owner bool) {
	select {
	case token, granted := <-w.grant:
		if granted {
			return s.take(w, token, ctx.Err() != nil, req, h, out)
		}
		s.engine.waiting.Add(-1)
	case <-ctx.Done():
		s.leave(w, req, h)
	}
	return false
}

// partLocked takes one caller off w.
func (s *shard) partLocked(w *waiters) {
	s.engine.waiting.Add(-1)
	w.n--
	if w.n == 0 && s.waiters[w.key] == w {
		delete(s.waiters, w.key)
	}
}

// wakeAllLocked tells everybody who waits for r to look again: it is done or unknown.
func (s *shard) wakeAllLocked(r ref) {
	if w := s.waiters[r]; w != nil {
		delete(s.waiters, r)
		close(w.grant)
	}
}

// yieldLocked frees a key: its claim passes to the longest waiter, or its record goes.
func (s *shard) yieldLocked(r ref, rec record, h uint32, now int64) {
	if w := s.waiters[r]; w != nil {
		s.handOverLocked(r, rec, w, now)
		return
	}
	s.removeLocked(r, rec, h)
}

// handOverLocked grants the claim on r to one of w. The lease runs from now, so that a waiter that
// never comes to take it is a dead owner like any other. A grant that nobody has taken yet is replaced.
func (s *shard) handOverLocked(r ref, rec record, w *waiters, now int64) {
	token := s.engine.tokens.Add(1)
	rec.claim(token, rec.fingerprint(), now)
	s.rescheduleLocked(r, rec, after(now, s.engine.cfg.Lease), now)
	s.counts.handedOver++
	select {
	case <-w.grant:
	default:
	}
	w.grant <- token
}
