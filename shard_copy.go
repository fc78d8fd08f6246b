package idem

import (
	"bytes"
	"slices"
	"time"
)

// How records leave a shard and come to it by other ways than a caller's claim: looked at one by one or all in turn, and
// taken over from another store. Like shard.go this locks; nothing else does.

// lookup copies the key's record.
func (s *shard) lookup(scope, key string, h uint32) (Record, bool, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return Record{}, false, ErrClosed
	}
	now := s.engine.clock.now()
	r, rec := s.findLocked(h, scope, key)
	if r, rec = s.reclaimLocked(r, rec, h, now); r == 0 {
		s.mu.Unlock()
		return Record{}, false, nil
	}
	found, shared := s.exportLocked(r, rec, now)
	s.mu.Unlock()
	if shared {
		found.Response.clone(nil)
	}
	return found, true, nil
}

// list copies records from hash cursor on, and returns the hash to go on from; zero after the last. See page.
func (s *shard) list(cursor uint32, buf []Record) ([]Record, uint32) {
	var shared []int // positions in buf
	next := s.page(cursor, func(r ref, rec record, now int64) {
		copied, large := s.exportLocked(r, rec, now)
		if large {
			shared = append(shared, len(buf))
		}
		buf = append(buf, copied)
	})
	for _, i := range shared {
		buf[i].Response.clone(nil)
	}
	return buf, next
}

// save is list for a snapshot. The engine must not be closed: an empty snapshot would take the place of a full one.
func (s *shard) save(cursor uint32, buf []savedRecord) ([]savedRecord, uint32, error) {
	next := s.page(cursor, func(r ref, rec record, _ int64) {
		rest := rec[recordHeader : rec.nameEnd()+rec.headerLen()+rec.bodyLen()]
		if !s.arena.large(r) { // otherwise it stays as it is, see viewLocked
			rest = bytes.Clone(rest)
		}
		buf = append(buf, savedRecord{head: [recordHeader]byte(rec), rest: rest})
	})
	if s.isClosed() {
		return buf, 0, ErrClosed
	}
	return buf, next, nil
}

func (s *shard) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// pageSlice is how many records one hold of the lock visits.
const pageSlice = 16

// page visits live records from hash cursor on, and returns the hash to go on from; zero after the last. A
// record that stays is on exactly one page, however many come and go meanwhile. Visits are made under the lock.
func (s *shard) page(cursor uint32, visit func(r ref, rec record, now int64)) (next uint32) {
	s.mu.Lock()
	hashes, next := s.index.page(cursor, nil)
	s.mu.Unlock()
	slices.Sort(hashes)
	for batch := range slices.Chunk(slices.Compact(hashes), pageSlice) {
		s.visit(batch, visit)
	}
	return next
}

// visit visits the live records that have one of hashes.
func (s *shard) visit(hashes []uint32, visit func(r ref, rec record, now int64)) {
	var refs []ref
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.engine.clock.now()
	for _, h := range hashes {
		refs = s.index.all(h, refs[:0]) // first, because reclaiming moves slots
		for _, r := range refs {
			if live, rec := s.reclaimLocked(r, s.arena.at(r), h, now); live != 0 {
				visit(live, rec, now)
			}
		}
	}
}

// replay answers req when its key is done and was done for the same request, as begin would.
func (s *shard) replay(req *Request, h uint32, out *Outcome) bool {
	contended := !s.mu.TryLock()
	if contended {
		s.mu.Lock()
	}
	r, rec := s.findLocked(h, req.Scope, req.Key)
	if r == 0 || rec.state() != flagDone || rec.fingerprint() != req.Fingerprint || s.endedLocked(rec) {
		s.mu.Unlock()
		return false
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
	return true
}

// endedLocked reports whether a record's time is over. It reads the exact clock only when that can matter.
func (s *shard) endedLocked(rec record) bool {
	clock := &s.engine.clock
	return !clock.far(rec.deadline()) && rec.deadline() <= clock.now()
}

// adopt records what another store has recorded, until deadline, or for the engine's TTL if that ends earlier. It
// takes the place of an older record, which one with a lower token is. It does nothing when there is no room.
func (s *shard) adopt(from *Record, h uint32, own record, deadline int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.engine.clock.now()
	if s.closed || deadline <= now {
		return
	}
	r, rec := s.findLocked(h, from.Scope, from.Key)
	if r, rec = s.reclaimLocked(r, rec, h, now); r != 0 {
		if rec.token() >= from.Token {
			return
		}
		s.removeLocked(r, rec, h)
	}
	resp := &from.Response
	size := recordSize(from.Scope, from.Key, len(resp.Header)+len(resp.Body))
	if s.admitLocked(size) != nil {
		s.counts.refused++
		return
	}
	r, rec = s.createLocked(from.Scope, from.Key, h, size)
	rec.claim(from.Token, from.Fingerprint, now)
	resp.TTL = min(time.Duration(deadline-now), s.engine.cfg.TTL)
	s.finishLocked(r, rec, h, resp, own, now)
}

// restore takes in a record of a snapshot, unless its time is over or its key is taken, and reports whether it is not over.
// As restoreLocked it looks at no limit but how many slabs there can be.
func (s *shard) restore(saved record, scope, key string, h uint32) (live bool, err error) {
	var own record
	if len(saved) > maxShared {
		own = bytes.Clone(saved) // see ownCell
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	now := s.engine.clock.now()
	lapsed, end := saved.lapsed(now), saved.deadline()
	if lapsed && s.engine.cfg.OnLeaseExpiry == Hold {
		end = after(end, s.engine.cfg.TTL)
	}
	r, rec := s.findLocked(h, scope, key)
	if r, rec = s.settleLocked(r, rec, h, now); r != 0 && !saved.succeeds(rec, now) {
		return true, nil
	}
	if end <= now {
		if lapsed && r == 0 {
			s.counts.restored++
			s.lapseLocked()
		}
		return false, nil
	}
	if !s.numbersLeftLocked() {
		s.counts.refused++
		return false, errManySlabs
	}
	if r != 0 {
		s.supersedeLocked(r, rec, h, now)
	}
	if r, rec = s.enterLocked(saved, own, h); lapsed {
		s.settleLocked(r, rec, h, now)
	} else {
		s.scheduleLocked(r, rec, rec.deadline(), now)
	}
	return true, nil
}

// succeeds reports whether a record of a snapshot takes the place of known, the key's own: it tells how the same claim
// ended, or known is a claim that has lapsed and is the older one.
func (r record) succeeds(known record, now int64) bool {
	if r.token() == known.token() {
		return r.state() == flagDone && known.state() != flagDone
	}
	return known.lapsed(now) && r.token() > known.token()
}

// supersedeLocked erases a claim in whose place another record comes: a later one, or its own end.
func (s *shard) supersedeLocked(r ref, rec record, h uint32, now int64) {
	if rec.lapsed(now) {
		s.lapseLocked()
	} else {
		s.counts.restored-- // it is that record still
	}
	s.wakeAllLocked(r)
	s.removeLocked(r, rec, h)
}

// enterLocked gives a record from elsewhere a cell: own, if there is one. It is not in the wheel yet.
func (s *shard) enterLocked(saved, own record, h uint32) (r ref, rec record) {
	if own != nil {
		r = s.arena.adopt(own)
		rec = own
	} else {
		r = s.arena.alloc(len(saved))
		rec = s.arena.at(r)
		copy(rec, saved)
	}
	s.index.insert(h, r)
	s.remadeLocked()
	switch rec.state() {
	case flagInProgress:
		s.counts.inProgress++
	case flagDone:
		s.estimateLocked(rec.headerLen() + rec.bodyLen())
	}
	s.accountLocked()
	return r, rec
}
