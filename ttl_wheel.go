package idem

import (
	"math"
	"math/bits"
)

// A wheel is a hierarchical timing wheel (Varghese and Lauck, 1987): eight levels of 64 slots, each
// level's slots 64 times as wide as those of the level below. A record lies in the level of the highest
// group of six bits in which its deadline differs from the wheel's time; when the time reaches its slot
// it moves to a lower level, and from the lowest one it is due. Inserting, removing and moving on are
// O(1); empty slots cost nothing, since a bitmap per level finds the next one in use: a jump over a year
// is a handful of steps.
//
// The lists are linked through the records' own headers. A wheel reads no clock and never returns a
// record before its deadline; it may be late by a tick, so whoever looks a record up compares the
// deadline itself. It is not safe for concurrent use.
type wheel struct {
	now   int64 // ticks; everything before it has been returned
	inUse [wheelLevels]uint64
	heads [wheelLevels << slotBits]ref
}

const (
	tickBits    = 20 // a tick is 2^20 ns, about a millisecond
	slotBits    = 6
	wheelLevels = 8 // 8 × 6 bits of ticks: more than an int64 of nanoseconds needs

	// isHead marks a prev link that is a slot's number, not a record. Refs leave the top bit free.
	isHead = 1 << 31
)

// time returns how far the wheel has come, in ns. It must not be asked for what is due before that.
func (w *wheel) time() int64 { return w.now << tickBits }

// tickOf returns the first tick at or after t.
func tickOf(t int64) int64 {
	return int64((uint64(t) + 1<<tickBits - 1) >> tickBits)
}

// tickEnd returns the time of that tick, when a record with deadline t is due.
func tickEnd(t int64) int64 {
	if tick := tickOf(t); tick <= math.MaxInt64>>tickBits {
		return tick << tickBits
	}
	return math.MaxInt64
}

// insert files r, whose deadline is set.
func (w *wheel) insert(a *arena, r ref) {
	rec := a.at(r)
	t := max(tickOf(rec.deadline()), w.now)
	level := (bits.Len64(uint64(t^w.now)|(1<<slotBits-1)) - 1) / slotBits
	slot := level<<slotBits | int(t>>(level*slotBits))&(1<<slotBits-1)
	head := w.heads[slot]
	rec.setNext(head)
	rec.setPrev(isHead | ref(slot))
	if head != 0 {
		a.at(head).setPrev(r)
	}
	w.heads[slot] = r
	w.inUse[level] |= 1 << (slot & (1<<slotBits - 1))
}

// remove takes r out, if it is there.
func (w *wheel) remove(a *arena, r ref) {
	rec := a.at(r)
	next, prev := rec.next(), rec.prev()
	if prev == 0 {
		return
	}
	rec.setPrev(0)
	if next != 0 {
		a.at(next).setPrev(prev)
	}
	if prev&isHead == 0 {
		a.at(prev).setNext(next)
		return
	}
	slot := prev &^ isHead
	w.heads[slot] = next
	if next == 0 {
		w.inUse[slot>>slotBits] &^= 1 << (slot & (1<<slotBits - 1))
	}
}

// pop takes out a record whose deadline is at or before now and returns it, or zero. Every record that
// it returns or moves to a lower level costs one of budget; when that is used up it returns zero, and a
// later call goes on where this one stopped.
func (w *wheel) pop(a *arena, now int64, budget *int) ref {
	target := now >> tickBits
	for *budget > 0 {
		level, slot := w.current()
		if level < 0 {
			next := w.nextTick()
			if next > target {
				w.now = max(w.now, target)
				return 0
			}
			w.now = next
			continue
		}
		*budget--
		r := w.heads[slot]
		w.remove(a, r)
		if level == 0 {
			return r
		}
		w.insert(a, r)
	}
	return 0
}

// current returns the highest slot in use that the wheel's time lies in, with its level, or -1. Records
// above the lowest level move down before anything is due, so that nothing is overtaken.
func (w *wheel) current() (level, slot int) {
	for level = wheelLevels - 1; level >= 0; level-- {
		i := int(w.now>>(level*slotBits)) & (1<<slotBits - 1)
		if w.inUse[level]>>i&1 != 0 {
			return level, level<<slotBits | i
		}
	}
	return -1, 0
}

// nextTick returns the tick at which the next slot after the current ones begins. Slots of a level lie in
// the same slot of the level above as the wheel's time, so the lowest level in use has the earliest.
func (w *wheel) nextTick() int64 {
	for level := range wheelLevels {
		at := w.now >> (level * slotBits)
		i := at & (1<<slotBits - 1)
		if later := w.inUse[level] >> i >> 1; later != 0 {
			return (at + 1 + int64(bits.TrailingZeros64(later))) << (level * slotBits)
		}
	}
	return math.MaxInt64
}

// next returns the time at which pop has something to do, at most a tick after the earliest deadline:
// in the past when it is behind, math.MaxInt64 when the wheel is empty.
func (w *wheel) next() int64 {
	tick := w.now
	if level, _ := w.current(); level < 0 {
		tick = w.nextTick()
	}
	if tick > math.MaxInt64>>tickBits {
		return math.MaxInt64
	}
	return tick << tickBits
}
