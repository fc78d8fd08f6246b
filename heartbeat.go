package idem

import (
	"context"
	"errors"
	"sync"
	"time"
)

// minBeat is the shortest time between two Extends: a lease below three of it can't be kept safely.
const minBeat = time.Millisecond

// A heartbeat keeps one claim while its operation runs.
type heartbeat struct {
	store Store
	claim Claim
	lease time.Duration // as requested: zero means the store's default to Extend as it did to Begin
	every time.Duration // a third of the lease as granted
	lose  func()        // tells the operation; may be called more than once

	// end is when the lease runs out by this process's clock, reckoned from before each Extend was sent, so
	// rather too early. Only the first is reckoned from Begin's answer, since Begin may have waited.
	// Once the goroutine runs nobody else touches it.
	end time.Time

	timer   *time.Timer
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// startHeartbeat extends the claim of out every third of its lease until stop. It calls lose when the
// store says that the claim is lost, and when the lease has run out without an answer to any Extend:
// another owner may be at work then.
//
// Most operations end within a third of their lease. So there is only a timer at first, which stop takes
// back; a goroutine starts with the first beat.
func startHeartbeat(ctx context.Context, store Store, lease time.Duration, out Outcome, lose func()) *heartbeat {
	h := &heartbeat{
		store: store,
		claim: out.Claim,
		lease: lease,
		every: max(out.Remaining/3, minBeat),
		lose:  lose,
		end:   time.Now().Add(out.Remaining),
	}
	ctx, h.cancel = context.WithCancel(ctx)
	h.running.Add(1)
	h.timer = time.AfterFunc(h.every, func() {
		defer h.running.Done()
		h.run(ctx)
	})
	return h
}

// stop ends the heartbeat, also an Extend that hangs, and waits until nothing of it is left
// (TestHeartbeatEndsBeforeDoReturns). It may be called once.
func (h *heartbeat) stop() {
	h.cancel()
	if !h.timer.Stop() { // fired: the goroutine runs or has ended by itself
		h.running.Wait()
	}
}

// run beats until ctx is done or the claim is lost.
func (h *heartbeat) run(ctx context.Context) {
	for h.renew(ctx) && sleep(ctx, h.every) {
	}
}

// renew extends the lease, however often that takes, and reports whether it did. It gives up when ctx is
// done or the claim is lost, but not at the end of the lease: as long as nobody else has claimed the key
// an Extend still succeeds, and keeps them out while the operation winds up.
func (h *heartbeat) renew(ctx context.Context) bool {
	// A timer, not a look at the clock between the tries, because a store may hang and not heed ctx.
	// A beat that is late itself, since the process was stopped, is owed one try before it.
	watchdog := time.AfterFunc(max(time.Until(h.end), h.every), h.lose)
	defer watchdog.Stop()
	for {
		asked := time.Now()
		err := h.extend(ctx)
		switch {
		case err == nil:
			h.end = asked.Add(3 * h.every)
			return true
		case errors.Is(err, ErrClaimLost):
			h.lose()
			return false
		case !sleep(ctx, max(h.every/4, minBeat)): // eight tries in the two thirds of the lease that are left
			return false
		}
	}
}

// extend calls the store once, and gives up when the next beat would be due: one lost packet must not cost
// the lease.
func (h *heartbeat) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.every)
	defer cancel()
	return h.store.Extend(ctx, h.claim, h.lease)
}

// sleep returns true after d, or false as soon as ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
