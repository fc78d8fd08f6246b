package idem

import (
	"fmt"
	"time"
)

// What a shard does to its records, index, wheel and totals in one go, so that they always agree.

// The ways to be full.
var (
	errManyBytes   = fmt.Errorf("%w: Config.MaxBytes is reached", ErrFull)
	errManyRecords = fmt.Errorf("%w: Config.MaxRecords is reached", ErrFull)
	errManySlabs   = fmt.Errorf("%w: a shard has no room for more large responses, see Config.Shards", ErrFull)
)

// admitLocked makes room for a new record of size bytes, or says why there is none.
func (s *shard) admitLocked(size int) error {
	e := s.engine
	// Responses of claims that were granted are recorded whatever happens, so that the limit may have been passed.
	if e.bytes.Load()+int64(s.arena.growth(size)) > int64(e.cfg.MaxBytes) {
		return errManyBytes
	}
	if !s.numbersLeftLocked() {
		return errManySlabs
	}
	if e.cfg.MaxRecords > 0 && e.records.Add(1) > int64(e.cfg.MaxRecords) {
		e.records.Add(-1)
		return errManyRecords
	}
	return nil
}

// numbersLeftLocked reports whether there are slab numbers for another record. Each response may become a slab of its own,
// and half of the numbers stay free for claims that are gone and complete late.
func (s *shard) numbersLeftLocked() bool { return len(s.arena.slabs)+s.counts.inProgress <= maxSlabs/2 }

// createLocked makes a record for a key that has none. It is not in the wheel yet.
func (s *shard) createLocked(scope, key string, h uint32, size int) (ref, record) {
	r := s.arena.alloc(size)
	rec := s.arena.at(r)
	rec.init(scope, key)
	s.index.insert(h, r)
	s.counts.inProgress++
	s.accountLocked()
	return r, rec
}

// restoreLocked makes the record of a claim that is gone anew. It is not refused when the store is full:
// the operation has run or is running.
func (s *shard) restoreLocked(c *Claim, h uint32, now int64) (ref, record) {
	s.remadeLocked()
	r, rec := s.createLocked(c.Scope, c.Key, h, recordSize(c.Scope, c.Key, s.payload))
	rec.claim(c.Token, c.Fingerprint, now)
	return r, rec
}

// remadeLocked counts a record that is made anew, whatever the limits.
func (s *shard) remadeLocked() {
	s.counts.restored++
	if s.engine.cfg.MaxRecords > 0 {
		s.engine.records.Add(1)
	}
}

// finishLocked makes a record done and wakes those who wait for it.
func (s *shard) finishLocked(r ref, rec record, h uint32, resp *Response, own record, now int64) {
	if rec.state() == flagInProgress {
		s.counts.inProgress--
	}
	s.wheel.remove(&s.arena, r)
	s.wakeAllLocked(r)
	size := rec.nameEnd() + len(resp.Header) + len(resp.Body)
	s.estimateLocked(len(resp.Header) + len(resp.Body))
	if own != nil {
		copy(own, rec[:rec.nameEnd()])
		r, rec = s.moveLocked(r, h, s.arena.adopt(own))
	} else {
		if cell := cellSize(size); cell > len(rec) || cell < len(rec)-len(rec)/4 {
			to := s.arena.alloc(size)
			copy(s.arena.at(to), rec[:rec.nameEnd()])
			r, rec = s.moveLocked(r, h, to)
		}
		rec.putPayload(resp)
	}
	rec.finish(resp, now)
	s.counts.completed++
	if resp.Truncated {
		s.counts.truncated++
	}
	s.scheduleLocked(r, rec, after(now, orDefault(resp.TTL, s.engine.cfg.TTL)), now)
	s.accountLocked()
}

// moveLocked puts cell to, into which the record was copied, in the place of r.
func (s *shard) moveLocked(r ref, h uint32, to ref) (ref, record) {
	s.index.replace(h, r, to)
	s.arena.release(r)
	return to, s.arena.at(to)
}

// estimateLocked learns the size that Begin will make room for: it follows larger responses at once and
// smaller ones slowly, since room to spare is cheaper than moving a record.
func (s *shard) estimateLocked(payload int) {
	if payload > s.payload {
		s.payload = min(payload, maxShared/2)
		return
	}
	s.payload -= (s.payload - payload + 15) / 16
}

// removeLocked erases a record.
func (s *shard) removeLocked(r ref, rec record, h uint32) {
	s.withdrawLocked(r)
	if rec.state() == flagInProgress {
		s.counts.inProgress--
	}
	if s.engine.cfg.MaxRecords > 0 {
		s.engine.records.Add(-1)
	}
	s.wheel.remove(&s.arena, r)
	s.index.remove(h, r)
	s.arena.release(r)
	s.accountLocked()
}

// scheduleLocked gives a record that is not in the wheel its deadline, and sees to it that the sweeper
// wakes in time: for a claim at once, since somebody may wait for it, and for others some time later.
func (s *shard) scheduleLocked(r ref, rec record, deadline, now int64) {
	due := s.due.Load()
	if due > now {
		s.wheel.advance(now)
	}
	rec.setDeadline(deadline)
	if at := s.wheel.insert(&s.arena, r, s.mayBeLate(rec)); at < due {
		s.due.Store(at)
		s.engine.wakeBefore(at)
	}
}

// mayBeLate reports whether rec may be reclaimed some time after its deadline: not when somebody may wait for that, nor
// when what is over would take the place of another, as it may in a store that is more than half full.
func (s *shard) mayBeLate(rec record) bool {
	e := s.engine
	return rec.state() != flagInProgress && e.cfg.MaxRecords == 0 && e.bytes.Load() < int64(e.cfg.MaxBytes/2)
}

// rescheduleLocked gives a record that may be in the wheel another deadline.
func (s *shard) rescheduleLocked(r ref, rec record, deadline, now int64) {
	s.wheel.remove(&s.arena, r)
	s.scheduleLocked(r, rec, deadline, now)
}

// accountLocked brings the engine's total of bytes up to date.
func (s *shard) accountLocked() {
	if held := s.arena.bytes + s.index.bytes; held != s.counted {
		s.engine.bytes.Add(int64(held - s.counted))
		s.counted = held
	}
}

// viewLocked gives resp what rec recorded, its bytes copied into buf or fresh memory. The bytes of a large
// record are not copied here: for them it returns true, and the caller clones the response when it no
// longer holds the lock. They stay as they are even when the record goes, since its slab is not reused.
func (s *shard) viewLocked(r ref, rec record, resp *Response, buf []byte) (shared bool) {
	s.engine.describe(rec, resp)
	payload := rec.payload()
	if shared = s.arena.large(r); !shared {
		payload = append(payloadBuf(buf, len(payload)), payload...)
	}
	resp.split(payload, rec.headerLen())
	return shared
}

// exportLocked copies a record for the outside; see viewLocked for shared.
func (s *shard) exportLocked(r ref, rec record, now int64) (out Record, shared bool) {
	out = Record{
		Scope: string(rec.scope()), Key: string(rec.key()), Token: rec.token(), Fingerprint: rec.fingerprint(),
		Since: s.engine.clock.wall(rec.since()), Remaining: time.Duration(rec.deadline() - now),
	}
	switch rec.state() {
	case flagInProgress:
		out.State = InProgress
	case flagUnknown:
		out.State = Unknown
	default:
		out.State = Replay
		shared = s.viewLocked(r, rec, &out.Response, nil)
	}
	return out, shared
}

// describe gives resp what rec recorded beside the bytes.
func (e *Engine) describe(rec record, resp *Response) {
	flags := rec.flags()
	resp.Status = rec.status()
	resp.Failed = flags&flagFailed != 0
	resp.Truncated = flags&flagTruncated != 0
	resp.StoredAt = e.clock.wall(rec.since())
}

// payloadBuf returns buf emptied, or room for n bytes when there is no buf.
func payloadBuf(buf []byte, n int) []byte {
	if buf == nil && n > 0 {
		return make([]byte, 0, n)
	}
	return buf[:0]
}

// split makes payload the response's header, the first n bytes, and body. Appending to the header does not
// write into the body. What is empty stays as it is, nil.
func (r *Response) split(payload []byte, n int) {
	if n > 0 {
		r.Header = payload[:n:n]
	}
	if n < len(payload) {
		r.Body = payload[n:]
	}
}

// clone makes the response's bytes the caller's own, in buf or fresh memory.
func (r *Response) clone(buf []byte) {
	payload := append(payloadBuf(buf, len(r.Header)+len(r.Body)), r.Header...)
	payload = append(payload, r.Body...)
	r.split(payload, len(r.Header))
}

// orDefault returns d, or standard when d is zero.
func orDefault(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}
