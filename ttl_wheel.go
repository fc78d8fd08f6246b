package idem

import (
	"math"
	"math/bits"
)

// A wheel is a hierarchical timing wheel (Varghese and Lauck, 1987): twenty levels of 64 slots, each
// level's slots 4 times as wide as those of the level below. A record lies in the lowest level whose 64 slots
// reach as far as its deadline, and stays there until it is due: the farther off it is, the less exactly it
// is known when. A record that must not be late lies in a slot before its deadline, and moves to a lower level when
// the time comes there. Inserting, removing and moving on are O(1); empty slots cost nothing, since a bitmap per level
// finds the next one in use: a jump over a year is a handful of steps.
//
// Each shard's wheel counts ticks from another number on, so that the slots of shards do not end all at the same time:
// what expires would come in bursts.
//
// The lists are linked through the records' own headers. A wheel reads no clock and never returns a
// record before its deadline; it may be late, so whoever looks a record up compares the
// deadline itself. It is not safe for concurrent use.
type wheel struct {
	phase  int64  // ticks; what the count of ticks begins with, see init
	now    int64  // ticks; everything before it has been returned
	levels uint32 // a bit for each level in use
	inUse  [wheelLevels]uint64
	heads  [wheelLevels << slotBits]ref
}

const (
	tickBits    = 20 // a tick is 2^20 ns, about a millisecond
	slotBits    = 6
	levelBits   = 2
	wheelLevels = 20 // 6 + 19 × 2 bits of ticks: more than an int64 of nanoseconds needs

	// maxLag is the share of the time until its deadline by which a record that may be late is: the width of
	// a slot against the 16 that lie before it at least, bar rounding.
	maxLag = 15

	// isHead marks a prev link that is a slot's number, not a record. Refs leave the top bit free.
	isHead = 1 << 31
)

// init makes the wheel the one of the shard of that number.
func (w *wheel) init(number int) {
	w.phase = int64(uint64(number) * 0x9e3779b97f4a7c15 >> 24)
	w.now = w.phase
}

// tickOf returns the first tick at or after t.
func (w *wheel) tickOf(t int64) int64 {
	return int64((uint64(t)+1<<tickBits-1)>>tickBits) + w.phase
}

// startOf returns when tick begins, in ns.
func (w *wheel) startOf(tick int64) int64 {
	if tick -= w.phase; tick <= math.MaxInt64>>tickBits {
		return tick << tickBits
	}
	return math.MaxInt64
}

// last returns the tick in which now lies.
func (w *wheel) last(now int64) int64 { return now>>tickBits + w.phase }

// time returns how far the wheel has come, in ns. It must not be asked for what is due before that.
func (w *wheel) time() int64 { return w.startOf(w.now) }

// advance moves the time on to now, before which nothing is due.
func (w *wheel) advance(now int64) { w.now = max(w.now, w.last(now)) }

// insert files r, whose deadline is set, and returns when pop will come to it. With late it does so once, after the
// deadline, by a tick and a fifteenth of the time until then at most; without, as often as it takes for a tick alone.
func (w *wheel) insert(a *arena, r ref, late bool) int64 {
	rec := a.at(r)
	t := max(w.tickOf(rec.deadline()), w.now)
	level := max(bits.Len64(uint64(t-w.now))-slotBits+levelBits-1, 0) / levelBits
	at := w.slot(t, level, late)
	if at-w.now>>(level*levelBits) >= 1<<slotBits {
		level++
		at = w.slot(t, level, late)
	}
	slot := level<<slotBits | int(at)&(1<<slotBits-1)
	head := w.heads[slot]
	rec.setNext(head)
	rec.setPrev(isHead | ref(slot))
	if head != 0 {
		a.at(head).setPrev(r)
	}
	w.heads[slot] = r
	w.inUse[level] |= 1 << (slot & (1<<slotBits - 1))
	w.levels |= 1 << level
	return w.startOf(at << (level * levelBits))
}

// slot returns the number of the slot of a level in which tick t lies, or of the one after it.
func (w *wheel) slot(t int64, level int, after bool) int64 {
	if after {
		t += 1<<(level*levelBits) - 1
	}
	return t >> (level * levelBits)
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
		level := slot >> slotBits
		w.inUse[level] &^= 1 << (slot & (1<<slotBits - 1))
		if w.inUse[level] == 0 {
			w.levels &^= 1 << level
		}
	}
}

// pop takes out a record whose deadline is at or before now and returns it, or zero. Every record that
// it returns or moves to a lower level costs one of budget; when that is used up it returns zero, and a
// later call goes on where this one stopped.
func (w *wheel) pop(a *arena, now int64, budget *int) ref {
	target := w.last(now)
	for *budget > 0 {
		slot := w.current()
		if slot < 0 {
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
		if w.tickOf(a.at(r).deadline()) <= w.now {
			return r
		}
		w.insert(a, r, false)
	}
	return 0
}

// current returns a slot in use that begins now or is not empty yet since it did, or -1.
func (w *wheel) current() int {
	for levels := w.levels; levels != 0; levels &= levels - 1 {
		level := bits.TrailingZeros32(levels)
		i := int(w.now>>(level*levelBits)) & (1<<slotBits - 1)
		if w.inUse[level]>>i&1 != 0 {
			return level<<slotBits | i
		}
	}
	return -1
}

// nextTick returns the tick at which the next slot in use begins, when there is no current one.
func (w *wheel) nextTick() int64 {
	next := int64(math.MaxInt64)
	for levels := w.levels; levels != 0; levels &= levels - 1 {
		level := bits.TrailingZeros32(levels)
		at := w.now >> (level * levelBits)
		ahead := bits.TrailingZeros64(bits.RotateLeft64(w.inUse[level], -int(at)&(1<<slotBits-1)))
		next = min(next, (at+int64(ahead))<<(level*levelBits))
	}
	return next
}

// next returns the time at which pop has something to do: in the past when it is behind, math.MaxInt64 when the
// wheel is empty.
func (w *wheel) next() int64 {
	if w.current() >= 0 {
		return w.startOf(w.now)
	}
	return w.startOf(w.nextTick())
}
