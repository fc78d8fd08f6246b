package httpidem

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// fallbackLease is taken for the length of a lease that the store does not tell.
	fallbackLease = 30 * time.Second

	// minBeat is the shortest time between two calls of Extend. A lease of less than a few of it can't be
	// kept.
	minBeat = time.Millisecond

	// never is further away than any process lasts.
	never = 100 * 365 * 24 * time.Hour
)

// A keeper extends a claim every third of its lease, so that it can fail once and be tried again, and
// ends the context of its handler when the time is up or the claim is lost.
type keeper struct {
	*guard
	*detached // of the run that the keeper is part of
	cancel    context.CancelCauseFunc

	lease    time.Duration
	deadline time.Time // when the context is ended
	beat     time.Time // when the claim is extended next
	until    time.Time // when the lease ends, as far as it is known here

	limited atomic.Bool    // see limit
	ticking sync.WaitGroup // one while the timer is armed or tick runs
	mu      sync.Mutex     // guards what follows
	timer   *time.Timer
	abort   context.CancelFunc // ends the Extend that is on its way, if there is one
	stopped bool
}

// start begins with a claim whose lease was granted at now.
func (k *keeper) start(now time.Time, lease time.Duration) {
	if k.lease = lease; lease <= 0 {
		k.lease = fallbackLease
	}
	k.deadline = now.Add(k.conf.MaxRun)
	k.extended(now)
	k.ticking.Add(1)
	k.mu.Lock() // a short time may be up before timer is set
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(k.next(now), k.tick)
}

// next returns when to tick next: not later than after finishTimeout, for the sake of limit.
func (k *keeper) next(now time.Time) time.Duration {
	return min(k.deadline.Sub(now), k.beat.Sub(now), finishTimeout)
}

// limit gives whoever uses the context another finishTimeout from the next tick on, and no more.
func (k *keeper) limit() { k.limited.Store(true) }

// stop makes an end of ticking. A tick that is on its way is told so, see wait. Calling stop again does
// nothing.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopped && k.timer.Stop() {
		k.ticking.Done()
	}
	if k.abort != nil {
		k.abort()
	}
	k.stopped = true
}

// wait returns when no tick is on its way any more. It must come after stop.
func (k *keeper) wait() { k.ticking.Wait() }

// tick does what is due, and arms the timer for what is next.
func (k *keeper) tick() {
	defer k.ticking.Done()
	now := time.Now()
	if k.limited.CompareAndSwap(true, false) {
		k.deadline = now.Add(finishTimeout)
	}
	if !now.Before(k.deadline) {
		// The claim is extended all the same as long as the handler does not return: it still runs.
		k.cancel(context.DeadlineExceeded)
		k.deadline = now.Add(never)
	}
	if !now.Before(k.beat) {
		k.extend(now)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopped {
		k.ticking.Add(1)
		k.timer.Reset(k.next(time.Now()))
	}
}

func (k *keeper) extend(now time.Time) {
	ctx, cancel := context.WithTimeout(k.detached, max(k.lease/3, minBeat))
	defer cancel()
	k.mu.Lock()
	k.abort = cancel
	stopped := k.stopped
	k.mu.Unlock()
	if stopped {
		return
	}
	err := k.store.Extend(ctx, k.op.claim, k.lease)
	switch {
	case err == nil:
		k.extended(now)
	case errors.Is(err, idem.ErrClaimLost):
		k.beat = now.Add(never)
		k.lose(err)
	default:
		k.beat = now.Add(max(k.lease/12, minBeat))
		if !time.Now().Before(k.until) {
			k.lose(err) // by now somebody else may have it
		}
	}
}

// extended notes that the lease was extended by a call that began at now.
func (k *keeper) extended(now time.Time) {
	k.until, k.beat = now.Add(k.lease), now.Add(max(k.lease/3, minBeat))
}

// lose ends the handler's context, unless the claim is only lost because it was completed.
func (k *keeper) lose(err error) {
	k.mu.Lock()
	stopped := k.stopped
	k.mu.Unlock()
	if !stopped {
		k.conf.Logger.WarnContext(k.detached, "claim lost while its handler runs", "error", err)
		k.cancel(idem.ErrClaimLost)
	}
}
