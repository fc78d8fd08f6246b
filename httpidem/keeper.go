package httpidem

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// fallbackLease is taken for the length of a lease that the store does not tell.
	fallbackLease = 30 * time.Second

	// minBeat is the shortest time between two calls of Extend. A lease of less than a few of it can't be
	// kept.
	minBeat = time.Millisecond
)

// A keeper extends a claim every third of its lease, so that it can fail and be tried again, and ends the
// context of the handler when the claim is lost.
type keeper struct {
	*guard
	onTimer func()       // tick, kept because making it a func costs an allocation
	ctx     *lazyContext // of the handler; its parent is not done while the keeper is at work
	lease   time.Duration
	until   time.Time // when the lease ends, as far as it is known here

	// ticking is one while the timer is armed or tick runs: so wait returns when neither will call the
	// store any more.
	ticking sync.WaitGroup
	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	abort   context.CancelFunc // ends the Extend that is on its way, if there is one
	stopped bool
}

// start begins with a claim whose lease was granted at now. There is only a timer at first: most handlers
// return before it fires. After stop and wait a keeper may be started again.
func (k *keeper) start(g *guard, ctx *lazyContext, now time.Time, lease time.Duration) {
	k.guard, k.ctx = g, ctx
	if k.lease = lease; lease <= 0 {
		k.lease = fallbackLease // a foreign store that forgets to say; better too often than never
	}
	k.until = now.Add(k.lease)
	k.ticking.Add(1)
	k.mu.Lock() // a short time may be up before timer is set
	defer k.mu.Unlock()
	k.stopped = false
	if k.onTimer == nil {
		k.onTimer = k.tick
	}
	// The timer is new each time: those of testing/synctest must not be set in another test.
	k.timer = time.AfterFunc(max(k.lease/3, minBeat), k.onTimer)
}

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
		k.abort = nil
	}
	k.stopped = true
}

// wait returns when no tick is on its way any more. It must come after stop.
func (k *keeper) wait() { k.ticking.Wait() }

// tick extends the claim and arms the timer for the next time. It does so also when the handler's context
// has ended, as long as the handler does not return: it still runs.
func (k *keeper) tick() {
	defer k.ticking.Done()
	next := k.extend()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopped && next > 0 {
		k.ticking.Add(1)
		k.timer.Reset(next)
	}
}

// extend returns when to call it again, or zero if that is no use.
func (k *keeper) extend() time.Duration {
	beat := max(k.lease/3, minBeat)
	ctx, cancel := context.WithTimeout(k.ctx.parent, beat)
	defer cancel()
	if !k.mayBegin(cancel) {
		return 0 // the handler returned while the timer fired
	}
	now := time.Now() // before the call: the store counts from when it has got it, which is later
	err := k.store.Extend(ctx, k.ctx.parent.op.claim, k.lease)
	switch {
	case err == nil:
		k.until = now.Add(k.lease)
		return beat
	case errors.Is(err, idem.ErrClaimLost):
		k.lose(err)
		return 0
	case !time.Now().Before(k.until):
		k.lose(err) // by now somebody else may have it
	}
	return max(beat/4, minBeat) // soon, since a third of the lease has gone by already
}

// mayBegin tells whether there was no stop, which will call abort from now on.
func (k *keeper) mayBegin(abort context.CancelFunc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.abort = abort
	return !k.stopped
}

// lose ends the handler's context, unless the claim is only lost because it was completed.
func (k *keeper) lose(err error) {
	k.mu.Lock()
	stopped := k.stopped
	k.mu.Unlock()
	if !stopped {
		k.conf.Logger.WarnContext(k.ctx.parent, "claim lost while its handler runs", "error", err)
		k.ctx.end(idem.ErrClaimLost)
	}
}
