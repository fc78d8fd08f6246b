package msgidem

import "sync/atomic"

// A turn is a lock for workers that are all alike. It differs from a sync.Mutex in that a bubble of testing/synctest
// knows that who waits for it sleeps, and in that it can be closed; and from a channel with one token in that a
// worker that comes back takes it at once, although others wait. A token that is handed on in order makes every
// worker sleep before every message, once a queue has formed: a convoy.
type turn struct {
	taken   atomic.Bool
	waiting atomic.Int32
	wake    chan struct{} // holds one token, which says: look again
	closed  chan struct{} // not wake itself: a giver may still be about to send when another closes
}

func newTurn() *turn { return &turn{wake: make(chan struct{}, 1), closed: make(chan struct{})} }

// take waits for the turn, and returns false when it was closed.
func (t *turn) take() bool {
	if t.taken.CompareAndSwap(false, true) {
		return true
	}
	// Counted before the second look, and looked for by give after it has cleared taken: one of the two sees
	// the other.
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for !t.taken.CompareAndSwap(false, true) {
		select {
		case <-t.wake:
		case <-t.closed:
			return false
		}
	}
	return true
}

// give gives the turn back to whoever comes first.
func (t *turn) give() {
	t.taken.Store(false)
	if t.waiting.Load() > 0 {
		select {
		case t.wake <- struct{}{}:
		default: // one is being woken, and will wake the next
		}
	}
}

// close ends all waits, now and later. Only who has the turn may call it, instead of give.
func (t *turn) close() { close(t.closed) }
