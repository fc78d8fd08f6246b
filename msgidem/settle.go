package msgidem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
	"github.com/seed-5bb5eb37/idem/internal/patience"
)

const (
	// maxHold bounds how long a delivery is held for a broker that can't delay.
	maxHold = 10 * time.Second

	// maxReason bounds a reason in bytes: brokers put it into headers and advisories.
	maxReason = 1 << 10
)

// errLast is why a message that would be given back is a dead letter.
var errLast = errors.New("msgidem: the broker does not deliver the message again")

// settle does what the handler's result calls for.
func (j *job) settle(err error) {
	if err == nil {
		j.succeed()
		return
	}
	j.counters.failures.Add(1)
	switch {
	case j.lost.Load(): // whatever the handler says: the message is another consumer's, or soon will be
		j.counters.claimsLost.Add(1)
		j.release()
		j.leave(fmt.Errorf("%w: %w", idem.ErrClaimLost, err))
	case idem.IsPermanent(err):
		j.attempts.change(&j.m, func(h *history) { h.failed++ })
		j.bury(err)
	case errors.Is(context.Cause(j.parent), ErrStopped): // its failure is ours
		j.release()
		j.giveBack(0, err)
	default:
		j.fail(err)
	}
}

// succeed records that the handler ran, and only then acknowledges. The message is never given free again: it
// took effect.
func (j *job) succeed() {
	err := j.complete(idem.Response{TTL: j.cfg.TTL})
	j.unkeep()
	switch {
	case err == nil:
		j.attempts.forget(&j.m)
		j.ack(Done)
	case errors.Is(err, idem.ErrClaimLost):
		j.counters.claimsLost.Add(1)
		j.leave(err)
	default:
		j.claim = idem.Claim{}
		j.giveBack(j.backoff(), fmt.Errorf("%w: handler ran, but that is not recorded: %w", ErrStore, err))
	}
}

// replay ends a message that was settled before. Its dead letter was accepted before its failure was recorded.
func (j *job) replay(resp *idem.Response) {
	j.attempts.forget(&j.m)
	if resp.Failed {
		err := &idem.FailedError{Response: *resp}
		j.term(Skipped, err)
		return
	}
	j.ack(Skipped)
}

// fail counts a failed attempt. It was the last one, or there will be another.
func (j *job) fail(err error) {
	j.attempts.change(&j.m, func(h *history) { h.failed++ })
	if j.out.Attempt >= j.cfg.MaxAttempts {
		j.bury(fmt.Errorf("%w: %w", ErrAttempts, err))
		return
	}
	j.release()
	j.retry(j.backoff(), err)
}

// giveBack is for a message whose delivery came to nothing through no fault of its own: it does not count.
func (j *job) giveBack(delay time.Duration, err error) {
	j.excuse()
	j.retry(delay, err)
}

// leave is for a message whose claim is lost because of err.
func (j *job) leave(err error) {
	if j.m.Last {
		j.follow(err)
		return
	}
	j.yield(err)
}

// follow is leave on the last delivery, which nothing brings back. Whoever has the claim now may do the message, or
// fail without having another delivery either; and if nobody has it, since it only ran out, nobody will do it. So this
// delivery is a duplicate from now on, which waits for what becomes of the message.
func (j *job) follow(err error) {
	j.claim = idem.Claim{}
	fp, failed := j.fingerprint()
	var out idem.Outcome
	if failed == nil {
		if out, failed = j.begin(fp); failed != nil && j.parent.Err() == nil {
			j.counters.storeErrors.Add(1)
		}
	}
	switch {
	case failed != nil:
		err = fmt.Errorf("%w: %w", err, failed)
	case out.State == idem.Replay:
		j.out.State = out.State
		j.replay(&out.Response)
		return
	case out.State == idem.Fresh: // not for another run: this one may have taken effect
		j.claim = out.Claim
		j.release()
	}
	j.giveBack(j.backoff(), err)
}

// yield is for a message that another consumer has claimed, or soon will. It must not be acknowledged, and a broker
// that delivers it again by itself need not be told anything.
func (j *job) yield(err error) {
	j.claim = idem.Claim{}
	j.excuse()
	if j.m.AckWait > 0 {
		j.out.Result, j.out.Err = Left, err
		return
	}
	j.nak(j.backoff(), err)
}

// excuse takes a delivery out of the broker's count, if it counts, and lets the back-off grow in any case.
func (j *job) excuse() { j.attempts.change(&j.m, func(h *history) { h.unrun++ }) }

// retry has the message delivered again, or makes a dead letter of it when it would not be.
func (j *job) retry(delay time.Duration, err error) {
	if j.m.Last {
		j.claim = idem.Claim{} // nothing is known to have failed for good
		j.bury(fmt.Errorf("%w: %w", errLast, err))
		return
	}
	j.nak(delay, err)
}

// bury makes a dead letter. The hook comes first and the record after it, so that a recorded failure means a
// letter that was accepted, and a crash in between costs a second letter and not the only one.
func (j *job) bury(reason error) {
	if err := j.post(reason); err != nil {
		j.doom(reason)
		j.release()
		j.nak(j.backoff(), fmt.Errorf("%w: %w: %w", ErrDeadLetter, err, reason))
		return
	}
	if j.claim.Token != 0 {
		err := j.complete(idem.Response{Failed: true, Body: []byte(reason.Error()), TTL: j.cfg.TTL})
		j.unkeep()
		switch {
		case errors.Is(err, idem.ErrClaimLost):
			j.counters.claimsLost.Add(1)
			j.yield(err) // on the last delivery too: there is a letter
			return
		case err != nil:
			j.doom(reason)
			j.claim = idem.Claim{}
			j.nak(j.backoff(), fmt.Errorf("%w: failure not recorded: %w", ErrStore, err))
			return
		}
	}
	if j.out.State != idem.Mismatch { // then the history is the other message's
		j.attempts.forget(&j.m) // also when nothing is recorded: published again, it begins anew
	}
	j.term(DeadLettered, reason)
}

// doom keeps a message that is run under the job's claim from being run again in this process: only its letter is tried
// again.
func (j *job) doom(reason error) {
	if j.claim.Token != 0 {
		j.attempts.change(&j.m, func(h *history) { h.doom = reason })
	}
}

// post has the letter accepted, if it can. One that is not accepted on the last delivery is tried again for as long as a
// lease, since no other delivery will try.
func (j *job) post(reason error) error {
	if j.cfg.DeadLetter == nil {
		return nil
	}
	if j.claim.Token == 0 { // otherwise the broker is being told already
		j.keep(0)
		defer j.unkeep()
	}
	start := time.Now()
	err := j.letter(reason)
	if err == nil || !j.m.Last {
		return err
	}
	never := func(error) bool { return false }
	return patience.Retry(start, j.lease, never, func() error { return j.letter(reason) })
}

// letter gives the message to the hook for dead letters.
func (j *job) letter(reason error) (err error) {
	past, _ := j.attempts.of(&j.m)
	ctx := settling(j.parent)
	defer func() {
		ctx.End(nil)
		if v := recover(); v != nil {
			err = j.panicked("dead letter", v)
		}
		if err != nil {
			j.counters.hookErrors.Add(1)
		}
	}()
	return j.cfg.DeadLetter(ctx, DeadLetter{Message: j.m, Reason: oneLine(reason), Err: reason, Attempts: past.failed})
}

// complete records resp. A store that fails is tried again, with the claim extended meanwhile: what is not
// recorded runs again when the lease has run out. Each try is safe, since Complete is idempotent.
func (j *job) complete(resp idem.Response) error {
	start := time.Now()
	j.completing.For(j.parent, settleTimeout)
	err := j.completeOnce(&j.completing, resp)
	if err == nil || isFinal(err) {
		return err
	}
	return patience.Retry(start, j.lease, isFinal, func() error { return j.completeOnce(settling(j.parent), resp) })
}

func (j *job) completeOnce(ctx *lazyctx.Context, resp idem.Response) error {
	defer ctx.End(nil)
	err := j.store.Complete(ctx, j.claim, resp)
	if errors.Is(err, idem.ErrTruncated) {
		return nil // as good: that it ran is recorded
	}
	if err != nil && !errors.Is(err, idem.ErrClaimLost) {
		j.counters.storeErrors.Add(1)
	}
	return err
}

// isFinal reports whether another Complete would end with the same err. An error that this package does not
// know may pass, so it is not final.
func isFinal(err error) bool {
	return errors.Is(err, idem.ErrClaimLost) || errors.Is(err, idem.ErrClosed) || errors.Is(err, idem.ErrKey)
}

// release gives the claim up, if there is one. One try will do: at worst the key is free when the lease has run
// out.
func (j *job) release() {
	j.unkeep() // before Abandon: an Extend that comes after it would claim the key again
	if j.claim.Token == 0 {
		return
	}
	ctx := settling(j.parent)
	defer ctx.End(nil)
	err := j.store.Abandon(ctx, j.claim)
	if err != nil && !errors.Is(err, idem.ErrClaimLost) {
		j.counters.storeErrors.Add(1)
		j.cfg.Logger.WarnContext(ctx, "msgidem: claim could not be given up; the message is free when its lease ends",
			"scope", j.m.Scope, "error", err)
	}
	j.claim = idem.Claim{}
}

// backoff is how long the message waits after this attempt.
func (j *job) backoff() time.Duration { return j.backoffOf(j.out.Attempt) }

// backoffOf calls the function of the Config.
func (j *job) backoffOf(attempt int) (d time.Duration) {
	defer func() {
		if v := recover(); v != nil {
			j.counters.hookErrors.Add(1)
			_ = j.panicked("backoff", v)
			d = DefaultBackoff(attempt)
		}
	}()
	return max(j.cfg.Backoff(attempt), 0)
}

// ack tells the broker that the message is done. Nothing runs any more meanwhile.
func (j *job) ack(result Result) {
	j.at.leave()
	ctx := &j.acking
	ctx.For(j.parent, settleTimeout)
	defer ctx.End(nil)
	j.told(result, j.d.Ack(ctx))
}

// term tells the broker that the message will never be done, for the reason err.
func (j *job) term(result Result, err error) {
	j.out.Err = err
	if !j.can.Has(CanTerm) {
		j.ack(result)
		return
	}
	ctx := settling(j.parent)
	defer ctx.End(nil)
	j.told(result, j.d.Term(ctx, oneLine(err)))
}

// nak has the message delivered again after delay, because of err.
func (j *job) nak(delay time.Duration, err error) {
	j.out.Err, j.out.Delay = err, delay
	if !j.can.Has(CanNak) {
		j.out.Result = Retried // by whoever called Handle
		return
	}
	if !j.can.Has(CanDelay) && delay > 0 {
		j.hold(min(delay, maxHold))
		delay = 0
	}
	ctx := settling(j.parent)
	defer ctx.End(nil)
	j.told(Retried, j.d.NakAfter(ctx, delay))
}

// told notes the result if the broker took it.
func (j *job) told(result Result, err error) {
	if j.out.Result = result; err == nil {
		return
	}
	j.counters.brokerErrors.Add(1)
	j.out.Result = Left
	if err = fmt.Errorf("%w: %w", ErrBroker, err); j.out.Err != nil {
		err = fmt.Errorf("%w: %w", j.out.Err, err)
	}
	j.out.Err = err
}

// hold keeps the delivery for d, or until the consumer stops, and tells the broker that it does. It reports
// whether d is over.
func (j *job) hold(d time.Duration) bool {
	j.unkeep()
	j.claim = idem.Claim{}
	j.keep(0)
	defer j.unkeep()
	select {
	case <-j.stop.Done():
	case <-time.After(d):
	}
	return j.stop.Err() == nil // also when there was nothing to wait for
}

// oneLine returns the text of err for headers, which have no room for more.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
