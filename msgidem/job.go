package msgidem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
)

// A job is one delivery on its way through the handler. All that is needed for it is part of it, so that it is
// one allocation.
type job struct {
	*Handler
	d      Delivery
	m      Message
	can    Capability
	parent context.Context //nolint:containedctx // a job is the frame of one call, these are its arguments
	stop   context.Context //nolint:containedctx // done when the consumer takes no more: waits, and those only, end then

	at     *place // to be left early; nil for a caller of Handle, and for what stays in hand
	past   history
	claim  idem.Claim      // zero when it is not held, or must not be touched any more
	lease  time.Duration   // of claim, as granted
	ctx    lazyctx.Context // the Func's
	lost   atomic.Bool     // the handler was told that the claim is
	keeper *keeper.Keeper  // from the handler's pool; nil until it is needed
	out    Outcome

	// The contexts of the two calls by which a job that goes well is settled.
	completing, acking lazyctx.Context
}

// Handle takes one delivery through the whole contract: it runs the handler, or not, records that and tells the
// broker. It returns when all that is done. The end of ctx ends a wait for another consumer and the context of
// the handler, but neither the claim nor what settles the message: a success is recorded and acknowledged all
// the same. If the cause of ctx is [ErrStopped] the attempt does not count in this process.
//
// It does not panic, whatever the handler, the store or the broker does. A handler that calls [runtime.Goexit]
// ends the calling goroutine after the message was given back; Run starts another one then.
func (h *Handler) Handle(ctx context.Context, d Delivery) Outcome {
	if ctx == nil || d == nil {
		return Outcome{Result: Left, Err: errors.New("msgidem: nil context or delivery")}
	}
	j := &job{Handler: h, d: d, parent: ctx, stop: ctx}
	j.handle()
	return j.out
}

// handle is Handle. What it did is in j.out afterwards, also when it ended its goroutine and did not return.
func (j *job) handle() {
	j.ctx.Follow(j.parent)
	j.counters.deliveries.Add(1)
	// Deferred, since it is for panics of adapters and stores, and for handlers that exit, as well.
	defer func() {
		if v := recover(); v != nil {
			j.out.Err = j.panicked("delivery", v)
		}
		j.end()
	}()
	j.m, j.can = j.d.Message(), j.d.Can()
	j.past, j.out.Attempt = j.attempts.of(&j.m)
	j.work()
}

// fresh runs the handler under the claim that was granted, unless it is settled already that it must not run. That
// the broker has delivered the message often does not settle it: it counts what never came to a handler as well, since
// the message waited with a process that was stopped, or the store was away.
func (j *job) fresh() {
	switch {
	case j.past.doom != nil:
		j.bury(j.past.doom)
		return
	case j.m.Attempt-j.past.unrun > j.cfg.MaxDeliveries:
		j.bury(fmt.Errorf("%w: the broker delivered the message %d times", ErrAttempts, j.m.Attempt))
		return
	}
	returned := false
	defer func() {
		if !returned { // only what is deferred still runs in this goroutine
			j.counters.panics.Add(1)
			j.settle(ErrExited)
		}
	}()
	err := j.run()
	returned = true
	j.settle(err)
}

// run calls the handler.
func (j *job) run() (err error) {
	j.out.Ran = true
	j.counters.runs.Add(1)
	j.counters.running.Add(1)
	defer func() {
		j.counters.running.Add(-1)
		if v := recover(); v != nil {
			j.counters.panics.Add(1)
			err = j.panicked("handler", v)
		}
	}()
	return j.fn(&j.ctx, j.m, j.claim)
}

// end is the last of every job.
func (j *job) end() {
	j.unkeep()
	if j.keeper != nil {
		j.keepers.Put(j.keeper)
		j.keeper = nil
	}
	j.ctx.End(nil)
	if j.out.Result == 0 {
		j.out.Result = Left // something ended the goroutine; the claim's lease runs out
	}
	j.counters.results[j.out.Result].Add(1)
	j.report()
}

// work asks the store and does what it says.
func (j *job) work() {
	fp, err := j.fingerprint()
	if err != nil {
		j.fail(err)
		return
	}
	out, err := j.begin(fp)
	j.out.State = out.State
	switch {
	case errors.Is(err, idem.ErrKey):
		j.bury(err)
	case err != nil:
		j.storeFailed(err)
	case out.State == idem.Fresh:
		j.claim = out.Claim
		j.lease = out.Remaining
		j.keep(out.Remaining)
		j.fresh()
	case out.State == idem.Replay:
		j.replay(&out.Response)
	case out.State == idem.InProgress:
		j.counters.inProgress.Add(1)
		j.giveBack(untilFree(out.Remaining), &idem.InProgressError{Remaining: out.Remaining})
	case out.State == idem.Mismatch:
		j.counters.mismatched.Add(1)
		j.bury(idem.ErrMismatch)
	case out.State == idem.Unknown:
		j.counters.unknown.Add(1)
		j.fail(idem.ErrUnknown)
	default:
		j.storeFailed(fmt.Errorf("answer %v to Begin", out.State))
	}
}

// storeFailed gives a message back about which the store said nothing. It waits longer with each time, since in an outage
// all processes use up deliveries, see Config.MaxDeliveries.
func (j *job) storeFailed(err error) {
	if j.parent.Err() == nil {
		j.counters.storeErrors.Add(1)
		err = fmt.Errorf("%w: %w", ErrStore, err)
	}
	j.giveBack(j.backoffOf(max(j.out.Attempt, j.past.unrun+1)), err)
}

// untilFree is when a message that is in progress shall come again: a little after the lease, and not all that
// were given back for one owner at the same time.
func untilFree(remaining time.Duration) time.Duration {
	if d := remaining + time.Millisecond + rand.N(remaining/8+10*time.Millisecond); d > remaining {
		return d
	}
	return math.MaxInt64 // for ever, and a little
}

// fingerprint calls the function of the Config. One that panics must not do so for ever: it is a failed attempt.
func (j *job) fingerprint() (fp idem.Fingerprint, err error) {
	if j.cfg.Fingerprint == nil {
		return idem.FingerprintOf(j.m.Payload), nil
	}
	defer func() {
		if v := recover(); v != nil {
			j.counters.hookErrors.Add(1)
			err = j.panicked("fingerprint", v)
		}
	}()
	return j.cfg.Fingerprint(j.m), nil
}

// begin asks for the claim, and waits for its owner as long as Config.Wait allows. The first attempt does not
// wait, because most messages need neither a place in a queue nor a timer.
func (j *job) begin(fp idem.Fingerprint) (idem.Outcome, error) {
	req := idem.Request{Scope: j.m.Scope, Key: j.m.ID, Fingerprint: fp, Lease: j.cfg.Lease}
	out, err := j.store.Begin(j.parent, req)
	if err == nil && out.State == idem.InProgress && (j.cfg.Wait > 0 || j.m.Last) {
		return j.wait(req)
	}
	return out, err
}

// wait is begin for a message that another delivery is handled of. The broker is told meanwhile that this one is
// not forgotten.
func (j *job) wait(req idem.Request) (idem.Outcome, error) {
	ctx, cancel := context.WithCancel(j.parent)
	defer cancel()
	unstop := context.AfterFunc(j.stop, cancel)
	defer unstop()
	if !j.m.Last { // that one must not be given back
		timer := time.AfterFunc(j.cfg.Wait, cancel)
		defer timer.Stop()
	}
	j.counters.waiting.Add(1)
	defer j.counters.waiting.Add(-1)
	j.keep(0)
	defer j.unkeep()

	patient := req
	patient.Wait = true
	out, err := j.store.Begin(ctx, patient)
	switch {
	case err != nil && j.parent.Err() != nil:
		return out, context.Cause(j.parent) // ctx may have been told to stop before it was told why
	case err == nil || ctx.Err() == nil:
		return out, err
	}
	// Once more, to learn how long the lease lasts that was extended meanwhile.
	return j.store.Begin(j.parent, req)
}
