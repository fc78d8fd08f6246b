package waitroom

import "time"

// A name is what hints are about.
type name struct{ scope, key string }

// A line is the callers with one Key, in the order in which they came. It is there as long as they are.
// Guarded by the room's mu.
type line[R any] struct {
	name        name
	fingerprint [16]byte
	sibling     *line[R] // the same name, another fingerprint

	first, last *waiter[R]
	n           int // callers

	looks  int        // that have begun
	served int        // the last one whose answer was everyone's
	early  *waiter[R] // the last caller that came before the latest look began
	late   int        // callers that came after that

	hinted  bool
	due     time.Time // of the next look if there is no hint; zero is now
	attempt int       // looks in a row with the verdict Again
}

// A waiter is a caller in line.
type waiter[R any] struct {
	line       *line[R]
	prev, next *waiter[R]
	since      int // line.looks when the caller came

	// turn gets the caller's answer, or nil when the caller is first and has something to do. It has room for
	// one: the first gets no answers, and to it one nil says as much as two. It is made when the caller is to
	// sleep, since most callers are alone and do not.
	turn chan *Look[R]
}

// push puts a caller at the end.
func (l *line[R]) push() *waiter[R] {
	w := &waiter[R]{line: l, prev: l.last, since: l.looks}
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
		w.expectTurn()
	}
	l.last = w
	l.n++
	l.late++
	return w
}

// remove takes a caller out, wherever it stands.
func (l *line[R]) remove(w *waiter[R]) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	if l.early == w {
		l.early = w.prev
	}
	if w.since == l.looks {
		l.late--
	}
	l.n--
}

// begin begins a look. If it comes to no end, because its context does or it panics, the next one is due at once.
func (l *line[R]) begin() {
	l.due = time.Time{}
	l.hinted = false
	l.looks++
	l.early, l.late = l.last, 0
}

// takeEarly takes out those who came before the look began, and returns the first of them, which is the one who
// looked, and how many they are. They stay linked to each other.
func (l *line[R]) takeEarly() (first *waiter[R], n int) {
	first, n = l.first, l.n-l.late
	l.first, l.n, l.served = l.early.next, l.late, l.looks
	l.early.next = nil
	if l.first == nil {
		l.last = nil
	} else {
		l.first.prev = nil
	}
	l.early = nil
	return first, n
}

// hint has the first look, now or once it has ended the look that runs.
func (l *line[R]) hint() {
	l.hinted = true
	l.first.wake()
}

// wake gives the first in line its turn. One that does not sleep sees for itself what there is to do.
func (w *waiter[R]) wake() {
	select {
	case w.turn <- nil:
	default:
	}
}

// expectTurn must come before the caller sleeps, in the hold of mu in which it is decided that it will.
func (w *waiter[R]) expectTurn() {
	if w.turn == nil {
		w.turn = make(chan *Look[R], 1)
	}
}
