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
// context of the handler when the claim is lost. It may be used for one claim after the other.
//
// Most handlers return long before the first beat is due. So its timer is neither stopped when a handler
// returns nor set anew for the next one: when it fires it looks what it is needed for by then. A request
// mostly touches no timer at all, and one that nobody uses any more fires once in vain.
type keeper struct {
	onTimer func() // tick, kept because making it a func costs an allocation
	calling sync.WaitGroup

	mu    sync.Mutex // guards what follows
	run   *run       // whose claim it is
	lease time.Duration
	until time.Time          // when the lease ends, as far as it is known here
	beat  time.Time          // when to extend next; zero: there is no claim to keep
	fires time.Time          // when the timer fires; zero: it is not set
	timer *time.Timer        // nil before the first claim
	abort context.CancelFunc // ends the Extend that is on its way, if there is one
}

// start begins with a claim whose lease was granted at now. Stop and wait must have ended the one before.
func (k *keeper) start(x *run, now time.Time, lease time.Duration) {
	if lease <= 0 {
		lease = fallbackLease // a foreign store that forgets to say; better too often than never
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run, k.lease, k.until = x, lease, now.Add(lease)
	k.next(now, max(lease/3, minBeat))
}

// next makes the next beat be due in d, and sees to it that the timer fires by then. It is called with mu held.
func (k *keeper) next(now time.Time, d time.Duration) {
	k.beat = now.Add(d)
	if !k.fires.IsZero() && !k.beat.Before(k.fires) {
		return // it will fire before, and be set for the rest
	}
	k.fires = k.beat
	if k.timer != nil {
		k.timer.Reset(d)
		return
	}
	if k.onTimer == nil {
		k.onTimer = k.tick
	}
	k.timer = time.AfterFunc(d, k.onTimer)
}

// stop makes an end of the beats, and of an Extend that is on its way. Calling it again does nothing.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beat = time.Time{}
	if k.abort != nil {
		k.abort()
		k.abort = nil
	}
}

// wait returns when no call of Extend is on its way any more. It must come after stop.
func (k *keeper) wait() { k.calling.Wait() }

// tick extends the claim if it is time. It does so also when the handler's context has ended, as long as the
// handler does not return: it still runs.
func (k *keeper) tick() {
	ctx, cancel := k.due()
	if ctx == nil {
		return
	}
	defer k.calling.Done()
	defer cancel()
	asked := time.Now() // before the call: the store counts from when it has got it, which is later
	err := k.run.store.Extend(ctx, k.run.op.claim, k.lease)
	if k.lost(asked, err) {
		k.run.conf.Logger.WarnContext(&k.run.values, "claim lost while its handler runs", "error", err)
		k.run.ctx.End(idem.ErrClaimLost)
	}
}

// due returns the context for an Extend when it is time for one, and otherwise none.
func (k *keeper) due() (context.Context, context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fires = time.Time{}
	if k.beat.IsZero() {
		return nil, nil
	}
	now := time.Now()
	if early := k.beat.Sub(now); early > 0 {
		k.next(now, early)
		return nil, nil
	}
	every := max(k.lease/3, minBeat)
	ctx, cancel := context.WithTimeout(&k.run.values, every)
	k.abort = cancel
	k.beat = now.Add(every) // the timer may have fired twice: the other one comes too early now
	k.calling.Add(1)
	return ctx, cancel
}

// lost tells whether the claim is lost, by the answer to an Extend that was sent at asked, and sees to the next one.
// It is not when the claim was only completed meanwhile.
func (k *keeper) lost(asked time.Time, err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.beat.IsZero() {
		return false
	}
	now, every := time.Now(), max(k.lease/3, minBeat)
	switch {
	case err == nil:
		k.until = asked.Add(k.lease)
		k.next(now, every)
		return false
	case errors.Is(err, idem.ErrClaimLost):
		k.beat = time.Time{}
		return true
	}
	k.next(now, max(every/4, minBeat)) // soon, since a third of the lease has gone by already
	return !now.Before(k.until)        // by then somebody else may have it
}
