package idem

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkInvariants fails t unless the parts of e agree with each other: every record is in its shard's
// index, wheel and arena exactly once and is found under its key, the totals are the sums of the parts, and
// callers wait only for records in progress. It is to be called while no call and no sweep is under way
// (after [testing/synctest.Wait] for instance); audit may be called at any time.
func checkInvariants(t testing.TB, e *Engine) {
	t.Helper()
	records := audit(t, e)
	require.Equal(t, records, e.Len(), "Len")
	require.Equal(t, records, e.Stats().Records, "Stats().Records")
}

// audit is checkInvariants for an engine under load. It returns how many records there are. All shards are
// locked meanwhile, so that the engine's totals stand still.
func audit(t testing.TB, e *Engine) (records int) {
	t.Helper()
	for i := range e.shards {
		e.shards[i].mu.Lock()
	}
	found, records := findFaults(e)
	for i := range e.shards {
		e.shards[i].mu.Unlock()
	}
	// Failing comes after unlocking: Cleanup may have to close e.
	require.Empty(t, found)
	return records
}

// faults are collected instead of reported at once, because locks are held.
type faults []string

func (f *faults) want(ok bool, format string, args ...any) {
	if !ok && len(*f) < 20 {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

func (f *faults) same(got, want int, format string, args ...any) {
	f.want(got == want, "%s: %d, want %d", fmt.Sprintf(format, args...), got, want)
}

// check and equal are want and same for what is looked at a thousand times: they allocate nothing unless
// something is wrong.
func (f *faults) check(ok bool, what string, which int) {
	if !ok {
		f.want(false, "%s %#x", what, which)
	}
}

func (f *faults) equal(got, want int, what string, which int) {
	if got != want {
		f.same(got, want, "%s %#x", what, which)
	}
}

func findFaults(e *Engine) (f faults, records int) {
	bytes, waiting, tokens := 0, 0, map[uint64]bool{}
	for i := range e.shards {
		s := &e.shards[i]
		inIndex := f.index(s)
		inWheel := f.wheel(s)
		f.equal(f.arena(&s.arena), s.index.n, "live cells of shard", i)
		f.records(s, inIndex, tokens)
		waiting += f.waiters(s, inIndex)
		f.hot(s)

		f.equal(int(s.number), i, "number of shard", i)
		f.equal(len(inIndex), s.index.n, "pairs in the index of shard", i)
		f.equal(len(inWheel), s.index.n, "records in the wheel of shard", i)
		f.equal(s.counted, s.arena.bytes+s.index.bytes, "bytes accounted of shard", i)
		f.check(!s.closed || s.index.n+s.counted == 0, "closed, but not empty: shard", i)
		records += s.index.n
		bytes += s.counted
	}
	f.equal(int(e.bytes.Load()), bytes, "bytes of the engine", 0)
	f.check(int(e.waiting.Load()) >= waiting, "more callers are registered than wait", waiting)
	if e.cfg.MaxRecords > 0 && !e.shards[0].closed {
		f.equal(int(e.records.Load()), records, "records of the engine", 0)
	}
	return f, records
}

// index checks the directory and the tables, and returns the refs in them.
func (f *faults) index(s *shard) map[ref]uint32 {
	x, found, bytes := &s.index, map[ref]uint32{}, 0
	if x.tables != nil {
		f.equal(len(x.tables), 1<<x.depth, "directory entries", 0)
	}
	f.equal(len(x.slots), len(x.tables), "directory entries of slots", 0)
	for first := 0; first < len(x.tables); {
		t := x.tables[first]
		count := 1 << (x.depth - t.depth)
		f.equal(first%count, 0, "alignment of table", first)
		for i := first; i < first+count; i++ {
			f.check(x.tables[i] == t && &x.slots[i][0] == &t.slots[0] && len(x.slots[i]) == len(t.slots), "not the whole span of table", first)
		}
		n := 0
		for at, slot := range t.slots {
			if slot == 0 {
				continue
			}
			h, r := uint32(slot>>32), ref(slot)
			n++
			_, twice := found[r]
			f.check(!twice, "twice in the index: ref", int(r))
			found[r] = h
			f.check(x.table(h) == t, "in the wrong table: hash", int(h))
			f.check(t.reaches(h, at), "cannot be reached: hash", int(h))
		}
		f.equal(n, t.n, "records in table", first)
		f.check((n-1)*5 < len(t.slots)*4, "too full: table", first)
		bytes += 8 * len(t.slots)
		first += count
	}
	f.equal(bytes, x.bytes, "bytes of the index of shard", int(s.number))
	return found
}

// reaches reports whether no slot is empty from the home of h up to slot at.
func (t *table) reaches(h uint32, at int) bool {
	for i := t.home(h); i != at; i = (i + 1) & (len(t.slots) - 1) {
		if t.slots[i] == 0 {
			return false
		}
	}
	return true
}

// wheel checks the lists and that each record lies where the wheel will come to it in time, and returns them.
func (f *faults) wheel(s *shard) map[ref]bool {
	w, found := &s.wheel, map[ref]bool{}
	for slot, head := range w.heads {
		level := slot >> slotBits
		inUse := w.inUse[level]>>(slot&(1<<slotBits-1))&1 != 0
		f.check(inUse == (head != 0), "head and bit differ of wheel slot", slot)
		prev := isHead | ref(slot)
		for r := head; r != 0 && !found[r]; r = s.arena.at(r).next() {
			rec := s.arena.at(r)
			found[r] = true
			f.check(rec.prev() == prev, "wrong link to the one before: ref", int(r))
			tick, due, width := max(w.tickOf(rec.deadline()), w.now), w.dueOf(slot), int64(1)<<(level*levelBits)
			inTime, late := due <= tick && tick < due+width, tick <= due && due < tick+width
			if rec.state() != flagInProgress && s.engine.cfg.MaxRecords == 0 { // it may have been, when it came
				f.check(inTime || late, "wrong deadline for wheel slot", slot)
			} else {
				f.check(inTime, "wrong deadline for wheel slot", slot)
			}
			f.check(s.due.Load() <= w.startOf(due), "the sweeper would come late: ref", int(r))
			prev = r
		}
	}
	return found
}

// dueOf returns the tick at which the wheel will come to a slot, or would have in order to be in time.
func (w *wheel) dueOf(slot int) int64 {
	level := slot >> slotBits
	at := w.now >> (level * levelBits)
	ahead := (int64(slot) - at) & (1<<slotBits - 1)
	return (at + ahead) << (level * levelBits)
}

// arena checks the slabs, the lists of free cells and the classes' lists, and returns how many cells are handed out.
func (f *faults) arena(a *arena) (cells int) {
	bytes := 0
	var used, room, held [classes]int
	for id := range a.slabs {
		s, buf := &a.slabs[id], a.memory[id].buf
		f.equal(int(s.size), len(buf), "bytes of slab", id)
		f.equal(int(s.cell), int(a.memory[id].cell), "bytes per cell of slab", id)
		if buf == nil {
			f.check(id == 0 || id >= a.lowest, "free, but below the lowest: slab", id)
			continue
		}
		cells += int(s.used)
		bytes += len(buf)
		if s.class == noClass {
			f.equal(int(s.used), 1, "cells used of large slab", id)
			continue
		}
		free := f.freeCells(s, buf)
		f.equal(int(s.bump/s.cell)-len(free), int(s.used), "cells used of slab", id)
		used[s.class] += int(s.used)
		held[s.class] += len(buf)
		spare := a.byClass[s.class].spare == uint32(id)
		f.check(spare == (s.used == 0), "spare and empty differ: slab", id)
		if !spare && !s.full() {
			room[s.class]++
		}
	}
	f.equal(a.bytes, bytes, "bytes of the arena", 0)
	f.equal(len(a.memory), len(a.slabs), "slabs of the arena", 0)
	for i := range a.byClass {
		c := &a.byClass[i]
		f.equal(int(c.used), used[i], "cells used of class", i)
		f.equal(c.bytes, held[i], "bytes of class", i)
		n := 0
		for id, prev := c.room, uint32(0); id != 0 && n <= len(a.slabs); id = a.slabs[id].next {
			f.check(a.slabs[id].prev == prev && !a.slabs[id].full(), "wrongly listed: slab", int(id))
			prev = id
			n++
		}
		f.equal(n, room[i], "slabs with room of class", i)
	}
	return cells
}

// freeCells walks a slab's list of returned cells.
func (f *faults) freeCells(s *slab, buf []byte) map[uint32]bool {
	free := map[uint32]bool{}
	for next := s.free; next != 0; {
		off := (next - 1) * cellAlign
		if free[off] || off%s.cell != 0 || off >= s.bump {
			f.check(false, "bad free cell at", int(off))
			break
		}
		free[off] = true
		cell := record(buf[off : off+s.cell])
		f.check(cell.state() == 0, "has a state: free cell at", int(off))
		next = cell.u32(0)
	}
	return free
}

// records checks what the cells hold.
func (f *faults) records(s *shard, refs map[ref]uint32, tokens map[uint64]bool) {
	inProgress := 0
	for r, h := range refs {
		rec := s.arena.at(r)
		scope, key := string(rec.scope()), string(rec.key())
		found, _ := s.findLocked(h, scope, key)
		f.check(found == r, "not found under its key: ref", int(r))
		f.check(s.engine.hash(scope, key) == h, "under another hash: ref", int(r))
		f.check(s.engine.shardOf(scope, key) == s, "in another shard: ref", int(r))
		f.check(rec.nameEnd()+rec.headerLen()+rec.bodyLen() <= len(rec), "larger than its cell: ref", int(r))
		f.check(len(key) > 0 && rec.deadline() > 0, "no key or deadline: ref", int(r))
		f.check(!tokens[rec.token()] && rec.token() <= s.engine.tokens.Load(), "token not granted, or twice: ref", int(r))
		tokens[rec.token()] = true
		switch rec.state() {
		case flagInProgress:
			inProgress++
		case flagDone, flagUnknown:
		default:
			f.check(false, "no one state: ref", int(r))
		}
	}
	f.equal(s.counts.inProgress, inProgress, "records in progress in shard", int(s.number))
}

// waiters checks who waits, and returns how many.
func (f *faults) waiters(s *shard, refs map[ref]uint32) (n int) {
	for r, w := range s.waiters {
		n += w.n
		f.check(w.key == r && w.n > 0, "wrong key or number of the waiters for ref", int(r))
		_, live := refs[r]
		f.check(live && s.arena.at(r).state() == flagInProgress, "not in progress, but waited for: ref", int(r))
	}
	return n
}

// hot checks that the hot record is a copy of a live one.
func (f *faults) hot(s *shard) {
	h := s.hot.Load()
	f.check((h != nil) == (s.hotRef != 0), "hot record and ref differ", int(s.hotRef))
	top := s.engine.hottest.Load()
	f.check(top == nil || top.shard != s || top == h, "the hottest record is no longer hot, ref", int(s.hotRef))
	if h == nil {
		return
	}
	rec := s.arena.at(s.hotRef)
	f.check(rec.state() == flagDone && rec.named(h.scope, h.key) && rec.fingerprint() == h.fingerprint &&
		rec.deadline() == h.deadline && string(rec.payload()) == string(h.payload), "no copy of its record: hot record", int(s.hotRef))
}
