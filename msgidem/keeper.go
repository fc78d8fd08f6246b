package msgidem

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

	// minBeat is the shortest time between two beats. A lease or an ack wait of less than a few of it
	// can't be kept.
	minBeat = time.Millisecond
)

// A keeper beats while a message is in hand: it extends the claim, if there is one, and tells the broker that
// the message is still being handled, every third of the lease or of the broker's patience, whichever is
// shorter, so that a beat can fail and be tried again. It ends the handler's context when the claim is lost.
//
// Most messages are handled before the first beat is due. So there is a timer and no goroutine of its own.
type keeper struct {
	*job
	every time.Duration
	lease time.Duration // as granted; zero while there is no claim
	until time.Time     // when the lease ends, as far as it is known here; rather too early

	// beating is one while the timer is armed or tick runs: so wait returns when neither will call the
	// store or the broker any more.
	beating sync.WaitGroup
	lost    atomic.Bool // the handler was told that the claim is lost
	mu      sync.Mutex  // guards what follows
	timer   *time.Timer
	abort   context.CancelFunc // ends the beat that is on its way, if there is one
	on      bool
}

// start begins to keep the job's claim, whose lease was just granted; with a zero lease only the delivery. When
// neither needs it nothing happens. After stop it may be started again.
func (k *keeper) start(j *job, lease time.Duration) {
	k.job, k.lease = j, lease
	if k.claim.Token != 0 && lease <= 0 {
		k.lease = fallbackLease // a foreign store that forgets to say; better too often than never
	}
	k.every = k.lease / 3
	if wait := j.m.AckWait; wait > 0 && j.can.Has(CanHeartbeat) && (k.every == 0 || wait/3 < k.every) {
		k.every = wait / 3
	}
	if k.every == 0 {
		return
	}
	k.every = max(k.every, minBeat)
	k.until = time.Now().Add(k.lease)
	k.beating.Add(1)
	k.mu.Lock() // a short time may be up before timer is set
	defer k.mu.Unlock()
	k.on = true
	k.timer = time.AfterFunc(k.every, k.tick)
}

// stop ends the beats, and waits until nothing of them is left: an Extend that came after Abandon would take
// the key again. Calling it again does nothing.
func (k *keeper) stop() {
	if k.job == nil {
		return
	}
	k.mu.Lock()
	if k.on && k.timer.Stop() {
		k.beating.Done()
	}
	if k.abort != nil {
		k.abort()
	}
	k.on = false
	k.mu.Unlock()
	k.beating.Wait()
}

// tick beats and arms the timer for the next time. It does so also when the handler's context has ended, as
// long as the handler does not return: it still runs.
func (k *keeper) tick() {
	defer k.beating.Done()
	next := k.beat()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.abort = nil
	if k.on && next > 0 {
		k.beating.Add(1)
		k.timer.Reset(next)
	}
}

// beat returns when to call it again, or zero if that is no use. A panic of the adapter or of the store ends
// the beats and not the process.
func (k *keeper) beat() (next time.Duration) {
	defer k.guard("heartbeat")
	ctx, cancel := context.WithCancel(context.WithoutCancel(k.parent))
	defer cancel()
	if !k.begin(cancel) {
		return 0 // stopped while the timer fired
	}
	next = k.every
	if k.claim.Token != 0 {
		if next = k.extend(ctx); next == 0 {
			return 0 // no word to the broker: the message is another consumer's now
		}
	}
	if k.can.Has(CanHeartbeat) {
		k.heartbeat(ctx)
	}
	return next
}

// begin registers what ends the beat, and tells whether it may begin.
func (k *keeper) begin(abort context.CancelFunc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.abort = abort
	return k.on
}

// stopped tells whether a call may have failed only because stop ended it, or the claim was settled.
func (k *keeper) stopped() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.on
}

// extend extends the lease. It returns when to do so again, or zero when the claim is lost.
func (k *keeper) extend(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, k.every) // one lost packet must not cost the lease
	defer cancel()
	now := time.Now() // before the call: the store counts from when it has got it, which is later
	// A timer besides the look at the clock below, because a store may hang and not heed ctx. A beat that
	// is late itself, since the process was stopped, is owed one try before it.
	watchdog := time.AfterFunc(max(k.until.Sub(now), k.every), k.lose)
	defer watchdog.Stop()
	err := k.store.Extend(ctx, k.claim, k.cfg.Lease)
	switch {
	case err == nil:
		k.until = now.Add(k.lease)
		return k.every
	case k.stopped():
		return 0
	case errors.Is(err, idem.ErrClaimLost):
		k.lose()
		return 0
	}
	k.counters.storeErrors.Add(1)
	if !time.Now().Before(k.until) {
		k.lose() // by now somebody else may have it; but as long as nobody has, an Extend still succeeds
	}
	return max(k.every/4, minBeat)
}

// heartbeat tells the broker. If that fails the next beat is soon enough, or the broker delivers the message
// again and finds it in progress.
func (k *keeper) heartbeat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, k.every)
	defer cancel()
	if err := k.d.Heartbeat(ctx); err != nil && !k.stopped() {
		k.counters.brokerErrors.Add(1)
		k.cfg.Logger.WarnContext(ctx, "broker did not take a heartbeat", "scope", k.m.Scope, "error", err)
	}
}

// lose ends the handler's context.
func (k *keeper) lose() {
	if !k.lost.Swap(true) {
		k.cfg.Logger.WarnContext(k.parent, "claim lost while its handler runs", "scope", k.m.Scope)
		k.ctx.End(idem.ErrClaimLost)
	}
}
