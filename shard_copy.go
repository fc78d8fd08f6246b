package idem

import (
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

// pageSlice is how many records one hold of the lock copies.
const pageSlice = 16

// page copies records from hash cursor on, and returns the hash to go on from; zero after the last. A
// record that stays is on exactly one page, however many come and go meanwhile.
func (s *shard) page(cursor uint32, buf []Record) ([]Record, uint32) {
	s.mu.Lock()
	hashes, next := s.index.page(cursor, nil)
	s.mu.Unlock()
	slices.Sort(hashes)
	for batch := range slices.Chunk(slices.Compact(hashes), pageSlice) {
		buf = s.export(batch, buf)
	}
	return buf, next
}

// export copies the live records that have one of hashes.
func (s *shard) export(hashes []uint32, buf []Record) []Record {
	var refs []ref
	var shared []int // positions in buf
	s.mu.Lock()
	now := s.engine.clock.now()
	for _, h := range hashes {
		refs = s.index.all(h, refs[:0]) // first, because reclaiming moves slots
		for _, r := range refs {
			if live, rec := s.reclaimLocked(r, s.arena.at(r), h, now); live != 0 {
				copied, large := s.exportLocked(live, rec, now)
				if large {
					shared = append(shared, len(buf))
				}
				buf = append(buf, copied)
			}
		}
	}
	s.mu.Unlock()
	for _, i := range shared {
		buf[i].Response.clone(nil)
	}
	return buf
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
	if !s.admitLocked(size) {
		s.counts.refused++
		return
	}
	r, rec = s.createLocked(from.Scope, from.Key, h, size)
	rec.claim(from.Token, from.Fingerprint, now)
	resp.TTL = min(time.Duration(deadline-now), s.engine.cfg.TTL)
	s.finishLocked(r, rec, h, resp, own, now)
}
