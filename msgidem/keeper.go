package msgidem

import (
	"context"
	"errors"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
)

// fallbackLease is taken for the length of a lease that the store does not tell: better too often than never.
const fallbackLease = 30 * time.Second

// keep begins to extend the job's claim, whose lease was just granted, and to tell the broker that the message is
// still being handled: every third of the lease or of the broker's patience, whichever is shorter. With a zero lease it
// only does the latter. When neither needs it nothing happens. After unkeep it may be called again.
func (j *job) keep(lease time.Duration) {
	if j.claim.Token != 0 && lease <= 0 {
		lease = fallbackLease
	}
	every := lease / 3
	if wait := j.m.AckWait; wait > 0 && j.can.Has(CanHeartbeat) && (every == 0 || wait/3 < every) {
		every = wait / 3
	}
	if every == 0 {
		return
	}
	if j.keeper == nil {
		j.keeper, _ = j.keepers.Get().(*keeper.Keeper)
	}
	if j.keeper == nil {
		j.keeper = new(keeper.Keeper)
	}
	j.keeper.Start(keeper.Claim{Owner: j, Context: j.parent, Lease: lease, Every: every}, time.Now())
}

// unkeep ends the beats, and waits until none is on its way: an Extend that came after Abandon would take the key
// again. Calling it again does nothing.
func (j *job) unkeep() {
	if j.keeper != nil {
		j.keeper.Stop()
		j.keeper.Wait()
	}
}

// Extend implements [keeper.Owner], as do Tell and Lost. A panic of the store is a failure like any other.
func (j *job) Extend(ctx context.Context) (lost bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			j.counters.hookErrors.Add(1)
			err = j.panicked("heartbeat", v)
		}
	}()
	err = j.store.Extend(ctx, j.claim, j.cfg.Lease)
	lost = errors.Is(err, idem.ErrClaimLost)
	if err != nil && !lost && !isStopped(ctx) {
		j.counters.storeErrors.Add(1)
	}
	return lost, err
}

// Tell sends the broker a heartbeat. If that fails the next beat is soon enough, or the broker delivers the message
// again and finds it in progress.
func (j *job) Tell(ctx context.Context) {
	if !j.can.Has(CanHeartbeat) {
		return
	}
	defer j.guard("heartbeat")
	if err := j.d.Heartbeat(ctx); err != nil && !isStopped(ctx) {
		j.counters.brokerErrors.Add(1)
		j.cfg.Logger.WarnContext(ctx, "msgidem: broker did not take a heartbeat", "scope", j.m.Scope, "error", err)
	}
}

// isStopped tells whether a beat may have failed only because it was aborted, see unkeep.
func isStopped(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// Lost ends the handler's context, unless the handler has completed the claim itself.
func (j *job) Lost(err error) {
	defer j.guard("store")
	if err != nil && idem.Completed(j.parent, j.store, j.claim) {
		return
	}
	j.lost.Store(true)
	j.cfg.Logger.WarnContext(j.parent, "msgidem: claim lost while its handler runs", "scope", j.m.Scope)
	j.ctx.End(idem.ErrClaimLost)
}
