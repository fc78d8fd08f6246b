// Package keeper keeps a claim while its operation runs: for Do, the middleware and message consumers alike.
package keeper

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// minBeat is the shortest time between two beats. A lease of less than a few of it can't be kept safely.
const minBeat = time.Millisecond

// An Owner is who runs under a claim. Its methods are called without a lock, and Lost perhaps while another one runs.
type Owner interface {
	// Extend extends the claim by its lease. lost says that somebody else may have it and trying again can't help. ctx
	// ends when the next beat would be due: one lost packet must not cost the lease.
	Extend(ctx context.Context) (lost bool, err error)

	// Tell tells whoever else has to know that the operation still runs. It is called after each Extend that did not find
	// the claim lost, with a ctx as Extend's, and alone when there is no claim.
	Tell(ctx context.Context)

	// Lost says, once, that the claim is lost: because of err, or, when err is nil, since its lease ran out while Extend
	// got no answer.
	Lost(err error)
}

// A Keeper extends a claim every third of its lease, so that it can fail and be tried again, and says when the claim is
// lost. It may be used for one claim after the other. The zero Keeper is ready for use.
//
// Most operations are over long before the first beat is due. So its timer is neither stopped with a claim nor set anew
// for the next one: when it fires it looks what it is needed for by then. A claim mostly touches no timer at all, and
// a Keeper that nobody uses any more fires once in vain, unless it is closed.
type Keeper struct {
	onTimer func()         // tick, kept because making it a func costs an allocation
	calling sync.WaitGroup // one while methods of the owner are called
	ticking sync.WaitGroup // one while the timer is set or tick runs

	mu    sync.Mutex // guards what follows
	claim Claim
	until time.Time          // when the lease ends, as far as it is known here; rather too early
	beat  time.Time          // when the next beat is due; zero: there is nothing to keep
	again bool               // the last Extend failed
	lost  bool               // the owner was told
	fires time.Time          // when the timer fires; zero: it is not set
	timer *time.Timer        // nil before the first claim
	abort context.CancelFunc // ends the beat that is on its way, if there is one
}

// A Claim is what to keep.
type Claim struct {
	Owner Owner

	// Context is whose values the owner's methods see. Whether it has ended does not matter.
	Context context.Context //nolint:containedctx // an argument of Start

	// Lease is how long the claim was granted for. Zero: there is none, and only Tell is called.
	Lease time.Duration

	// Every is the time between two beats.
	Every time.Duration
}

// Start begins with a claim that was granted at now. The one before must have been stopped and waited for.
func (k *Keeper) Start(c Claim, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.Every = max(c.Every, minBeat)
	k.claim, k.until, k.again, k.lost = c, now.Add(c.Lease), false, false
	k.next(now, c.Every)
}

// next makes the next beat be due in d, and sees to it that the timer fires by then. It is called with mu held.
func (k *Keeper) next(now time.Time, d time.Duration) {
	k.beat = now.Add(d)
	if !k.fires.IsZero() && !k.beat.Before(k.fires) {
		return // it will fire before, and be set for the rest
	}
	k.fires = k.beat
	if k.timer != nil {
		if !k.timer.Reset(d) {
			k.ticking.Add(1)
		}
		return
	}
	k.onTimer = k.tick
	k.ticking.Add(1)
	k.timer = time.AfterFunc(d, k.onTimer)
}

// Stop makes an end of the beats, and aborts the one that is on its way. Calling it again does nothing.
func (k *Keeper) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beat, k.claim = time.Time{}, Claim{}
	if k.abort != nil {
		k.abort()
		k.abort = nil
	}
}

// Wait returns when no method of the owner is being called any more, Lost perhaps apart. It must come after Stop.
func (k *Keeper) Wait() { k.calling.Wait() }

// Close stops for good, and returns when nothing of the Keeper is left.
func (k *Keeper) Close() {
	k.Stop()
	k.mu.Lock()
	if k.timer != nil && k.timer.Stop() {
		k.ticking.Done()
	}
	k.mu.Unlock()
	k.ticking.Wait()
}

// A beat is one that is under way.
type beat struct {
	Claim
	ctx    context.Context //nolint:containedctx // the frame of one call
	cancel context.CancelFunc
	grace  time.Duration // how long Extend may take before the lease is over
}

// tick does what is due. A claim is extended also when the context of its operation has ended, as long as that does not
// return: it still runs.
func (k *Keeper) tick() {
	defer k.ticking.Done()
	b := k.due()
	if b == nil {
		return
	}
	defer k.calling.Done()
	defer b.cancel()
	pause := b.Every
	if b.Lease > 0 {
		asked := time.Now() // before the call: the store counts from when it has got it, which is later
		gone, err := k.extend(b)
		var lost bool
		if pause, lost = k.answered(asked, gone, err); lost {
			b.Owner.Lost(err)
		}
	}
	if pause > 0 {
		b.tell()
		k.rearm(pause)
	}
}

// due returns the beat for which it is time, or nil.
func (k *Keeper) due() *beat {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fires = time.Time{}
	if k.beat.IsZero() {
		return nil
	}
	now := time.Now()
	if early := k.beat.Sub(now); early > 0 {
		k.next(now, early)
		return nil
	}
	b := &beat{Claim: k.claim, grace: k.until.Sub(now)}
	if !k.again {
		b.grace = max(b.grace, b.Every) // one that is late itself, since the process was stopped, is owed one try
	}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(b.Context))
	k.abort = b.cancel
	k.beat = now.Add(b.Every) // the timer may have fired twice: the other one comes too early now
	k.calling.Add(1)
	return b
}

// extend calls the owner. A timer besides the look at the clock in answered says that the lease is over, because a
// store may hang and not heed its context.
func (k *Keeper) extend(b *beat) (lost bool, err error) {
	watchdog := time.AfterFunc(b.grace, func() {
		if k.expired(b.Owner) {
			b.Owner.Lost(nil)
		}
	})
	defer watchdog.Stop()
	ctx, cancel := context.WithTimeout(b.ctx, b.Every)
	defer cancel()
	defer func() {
		if v := recover(); v != nil { // nobody else could, in a timer's goroutine
			err = fmt.Errorf("panic in Extend: %v", v)
		}
	}()
	return b.Owner.Extend(ctx)
}

func (b *beat) tell() {
	ctx, cancel := context.WithTimeout(b.ctx, b.Every)
	defer cancel()
	b.Owner.Tell(ctx)
}

// expired tells whether the owner has to be told that its lease is over. It may be asked late, when there is another one.
func (k *Keeper) expired(owner Owner) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.claim.Owner != owner {
		return false
	}
	news := !k.beat.IsZero() && !k.lost
	k.lost = true
	return news
}

// answered tells, by the answer to an Extend that was sent at asked, when to beat again, or zero if that is no use, and
// whether the claim is lost. It is not when it was stopped meanwhile: a claim that was completed can't be extended.
func (k *Keeper) answered(asked time.Time, gone bool, err error) (pause time.Duration, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	told := k.lost
	k.again = err != nil
	switch {
	case k.beat.IsZero():
		return 0, false
	case err == nil:
		k.until = asked.Add(k.claim.Lease)
		return k.claim.Every, false
	case gone:
		k.beat, k.lost = time.Time{}, true
		return 0, !told
	}
	// Soon: eight tries in the two thirds of the lease that are left, and one at its end. Then on, because as long as
	// nobody else has claimed the key an Extend still succeeds.
	pause = max(k.claim.Every/4, minBeat)
	if left := time.Until(k.until); left > 0 {
		return min(pause, left), false
	}
	k.lost = true
	return pause, !told
}

// rearm has the next beat be due after pause, unless the keeper was stopped.
func (k *Keeper) rearm(pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.beat.IsZero() {
		k.next(time.Now(), pause)
	}
}
