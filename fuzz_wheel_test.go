package idem

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A wheelFuzz is a wheel and the sorted list of what is in it.
type wheelFuzz struct {
	t *testing.T
	tape
	s    shard // its wheel and its arena
	now  int64
	list []timed // by last
	work int     // the budget that the wheel may use up
}

// A timed is a record in the wheel, and the last tick in which it may come.
type timed struct {
	r    ref
	last int64
}

// FuzzWheel compares a wheel with a sorted list: nothing comes early, or later than it may; budgets are kept,
// whatever the jump.
func FuzzWheel(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 5, 0, 3, 0, 0, 0, 3, 1, 1, 0})
	f.Add([]byte{0, 17, 1, 0, 8, 0, 0, 9, 0, 0, 10, 1, 3, 17, 4, 2, 0, 18, 0, 3, 18, 2, 1})
	for level := range byte(wheelLevels) {
		// A record on each side of the level's edge; then to it step by step, with the least budget.
		at := byte(len(lives)) + level
		f.Add([]byte{0, at, 0, 0, at, 1, 0, at, 2, 4, 0, 4, 0, 4, 0, 4, 0, 3, at, 2, 0, 0, at, 1, 4, 2})
	}
	f.Add(append(bytes.Repeat([]byte{0, 11, 0}, 40), 3, 11, 0, 0, 4, 0, 3, 11, 1, 1, 0, 2, 0, 11, 0, 3, 17, 2, 2))
	f.Fuzz(func(t *testing.T, input []byte) {
		w := &wheelFuzz{t: t, tape: input}
		w.s.engine = &Engine{cfg: Config{MaxBytes: math.MaxInt}}
		w.s.wheel.init(len(input) % 3)
		steps := []func(){w.insert, w.remove, w.move, w.advance, w.advanceToNext}
		for n := 0; len(w.tape) > 0 && n < 300; n++ {
			steps[w.next()%len(steps)]()
			requireSound(t, func(f *faults) { f.same(len(f.wheel(&w.s)), len(w.list), "records in the wheel") })
			requireSound(t, func(f *faults) { f.want(w.s.wheel.next() <= w.first(), "next is too late for %d", w.first()) })
		}
		w.now = math.MaxInt64
		w.pop(math.MaxInt)
	})
}

// first is the time by which a record must come.
func (w *wheelFuzz) first() int64 {
	if len(w.list) == 0 {
		return math.MaxInt64
	}
	return w.s.wheel.startOf(w.list[0].last)
}

// time chooses a time: a lease or TTL from now, or where a slot of some level begins, or a ns beside it.
func (w *wheelFuzz) time() int64 {
	i := w.next() % (len(lives) + wheelLevels)
	t := int64(math.MaxInt64)
	if i < len(lives) {
		t = after(w.now, lives[i])
	} else if shift := tickBits + slotBits + (i-len(lives))*levelBits; shift < 63 {
		t = after(w.now>>shift<<shift, 1<<shift)
	}
	return after(max(t-1, 0), pick[time.Duration](&w.tape, 1, 0, 2))
}

func (w *wheelFuzz) insert() {
	r := w.s.arena.alloc(recordHeader)
	w.s.arena.at(r).init("", "")
	w.file(r)
}

// file puts r into the wheel and the list, with a deadline that may have passed.
func (w *wheelFuzz) file(r ref) {
	deadline := w.time()
	if w.next()%8 == 0 {
		deadline = w.now / 2
	}
	if w.flag() && w.s.wheel.next() > w.now {
		w.s.wheel.advance(w.now)
	}
	rec := w.s.arena.at(r)
	rec.setDeadline(deadline)
	x := timed{r, max(w.s.wheel.tickOf(deadline), w.s.wheel.now)}
	late := w.flag()
	if late {
		rec.mark(flagDone, 0)
		x.last += (x.last - w.s.wheel.now) / maxLag
		w.work++
	} else {
		rec.mark(flagInProgress, 0)
		w.work += wheelLevels
	}
	require.LessOrEqual(w.t, w.s.wheel.insert(&w.s.arena, r, late), w.s.wheel.startOf(x.last))
	i, _ := slices.BinarySearchFunc(w.list, x, func(a, b timed) int { return cmp.Compare(a.last, b.last) })
	w.list = slices.Insert(w.list, i, x)
}

// take removes one of the records; removing it again does nothing.
func (w *wheelFuzz) take() (r ref) {
	if i := w.next(); len(w.list) > 0 {
		i %= len(w.list)
		r = w.list[i].r
		w.s.wheel.remove(&w.s.arena, r)
		w.s.wheel.remove(&w.s.arena, r)
		w.list = slices.Delete(w.list, i, i+1)
	}
	return r
}

func (w *wheelFuzz) remove() {
	if r := w.take(); r != 0 {
		w.s.arena.release(r)
	}
}

func (w *wheelFuzz) move() {
	if r := w.take(); r != 0 {
		w.file(r)
	}
}

func (w *wheelFuzz) advance() {
	w.now = max(w.now, w.time())
	w.pop(w.budget())
}

// advanceToNext goes to the time at which the wheel says that it has something to do: it must have.
func (w *wheelFuzz) advanceToNext() {
	budget := w.budget()
	next := w.s.wheel.next()
	if next == math.MaxInt64 {
		return
	}
	w.now = max(w.now, next)
	require.Positive(w.t, w.pop(budget), "the sweeper would spin")
}

func (w *wheelFuzz) budget() int { return pick(&w.tape, 1, 2, 7, sweepSlice, 1000) }

// pop takes out what is due, as far as budget goes, and returns how much of it was used.
func (w *wheelFuzz) pop(budget int) int {
	given := budget
	for r := w.s.wheel.pop(&w.s.arena, w.now, &budget); r != 0; r = w.s.wheel.pop(&w.s.arena, w.now, &budget) {
		require.LessOrEqual(w.t, w.s.arena.at(r).deadline(), w.now, "early")
		i := slices.IndexFunc(w.list, func(x timed) bool { return x.r == r })
		require.GreaterOrEqual(w.t, i, 0, "not in the wheel")
		w.list = slices.Delete(w.list, i, i+1)
		w.s.arena.release(r)
	}
	require.GreaterOrEqual(w.t, budget, 0)
	if budget > 0 && w.now < math.MaxInt64 {
		require.Greater(w.t, w.first(), w.now, "late")
		require.Greater(w.t, w.s.wheel.next(), w.now)
	}
	w.work -= given - budget
	require.GreaterOrEqual(w.t, w.work, 0, "more moves than levels, or more than one of a record that may be late")
	return given - budget
}
