package idemtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func claimRows() []Row {
	return []Row{{
		Name: "claim/one racer is fresh",
		Explanation: "Of any number of concurrent Begins of one free key exactly one is Fresh, and the others find it " +
			"in progress, whether it was free from the start, abandoned, or left by a TTL or lease that ran " +
			"out.",
		run: oneRacerIsFresh,
	}, {
		Name: "claim/fresh carries the claim",
		Explanation: "A Fresh outcome carries the claim: scope, key and fingerprint as they were asked for, a token and " +
			"the lease that was granted. It carries no response.",
		run: freshCarriesTheClaim,
	}, {
		Name: "claim/in progress tells the lease left",
		Explanation: "An InProgress outcome tells what is left of the owner's lease, above zero and shrinking, and " +
			"nothing else. Asking does not extend the lease, nor does it disturb the owner.",
		run: inProgressTellsTheLeaseLeft,
	}, {
		Name: "fingerprint/in progress",
		Explanation: "The fingerprint is compared first. While an operation is in progress, the key with another " +
			"fingerprint is a Mismatch, at once even with Wait, and the owner is not disturbed.",
		run: mismatchInProgress,
	}, {
		Name: "fingerprint/done",
		Explanation: "The fingerprint is compared first. A done record is a Mismatch for any other fingerprint, which " +
			"learns nothing of the response, and is replayed to its own.",
		run: mismatchDone,
	}, {
		Name: "context/done claims nothing",
		Explanation: "Begin with a context that is done returns the context's cause and claims nothing, with Wait or " +
			"without.",
		run: doneContextClaimsNothing,
	}, {
		Name:        "context/nil is refused",
		Explanation: "A nil context is an error, or panics; it must not be taken for one that never ends.",
		run:         nilContextIsRefused,
	}}
}

// oneRacerIsFresh is for stores that look and write in two steps: all who looked before the first one wrote
// become owners. The step is often missing only where a record is there that no longer counts.
func oneRacerIsFresh(r *rig) {
	ways := map[string]func(idem.Request){
		"absent":    func(idem.Request) {},
		"abandoned": func(req idem.Request) { r.abandon(r.fresh(req)) },
		"expired":   func(req idem.Request) { r.done(req, lasting(text("old"), r.short())) },
	}
	if !r.holds() {
		ways["lapsed"] = func(req idem.Request) { r.fresh(r.brief(req)) }
	}
	var requests []idem.Request
	for name, free := range ways {
		for round := range r.rounds() {
			req := r.request(fmt.Sprint(name, " ", round))
			free(req)
			requests = append(requests, req)
		}
	}
	r.sleep(r.short() + r.maker.Resolution)
	for _, req := range requests {
		r.race(req)
	}
}

// race has many callers begin at once, and one of them complete.
func (r *rig) race(req idem.Request) {
	start := make(chan struct{})
	outcomes := make([]idem.Outcome, racers)
	errs := make([]error, racers)
	var done sync.WaitGroup
	for i := range racers {
		done.Go(func() {
			<-start
			outcomes[i], errs[i] = r.store.Begin(r.Context(), req)
		})
	}
	close(start)
	done.Wait()
	require.NoError(r, errors.Join(errs...))
	states := map[string]int{}
	var owner idem.Claim
	for _, out := range outcomes {
		states[out.State.String()]++
		if out.State == idem.Fresh {
			owner = out.Claim
		}
	}
	require.Equal(r, map[string]int{"fresh": 1, "in progress": racers - 1}, states, "outcomes for %q", req.Key)
	r.complete(owner, text(req.Key))
	r.replays(req.Key, req)
}

// freshCarriesTheClaim is about what an owner goes by: the claim that it hands back later, and the lease
// that tells it how often to extend.
func freshCarriesTheClaim(r *rig) {
	req := r.request("k")
	req.Lease = 90 * time.Second
	out := r.expect(idem.Fresh, req)
	require.Equal(r, req.Scope, out.Claim.Scope)
	require.Equal(r, req.Key, out.Claim.Key)
	require.Equal(r, req.Fingerprint, out.Claim.Fingerprint)
	require.NotZero(r, out.Claim.Token)
	require.LessOrEqual(r, out.Remaining, r.most(req.Lease))
	require.GreaterOrEqual(r, out.Remaining, req.Lease-r.maker.Resolution)
	require.Zero(r, out.Response)
}

// inProgressTellsTheLeaseLeft is about what a duplicate tells its client: when to come back. Never zero,
// which clients take for at once or for never.
func inProgressTellsTheLeaseLeft(r *rig) {
	req := r.request("k")
	var c idem.Claim
	granted := timed(func() { c = r.fresh(req) })
	for range 3 {
		var out idem.Outcome
		asked := timed(func() { out = r.expect(idem.InProgress, req) })
		require.Positive(r, out.Remaining)
		require.GreaterOrEqual(r, out.Remaining, granted.from.Add(long-r.maker.Resolution).Sub(asked.to))
		require.LessOrEqual(r, out.Remaining, granted.to.Add(long+r.maker.Resolution).Sub(asked.from))
		require.Equal(r, idem.Outcome{State: idem.InProgress, Remaining: out.Remaining}, out)
		r.settle()
	}
	r.complete(c, text("done"))
}

// mismatches wants a Mismatch for fingerprints that differ from the one of req in one bit, wherever it is.
func (r *rig) mismatches(req idem.Request) {
	r.Helper()
	for i := range len(req.Fingerprint) {
		other := req
		other.Fingerprint[i] ^= 1 << (i % 8)
		other.Wait = i%2 == 1
		out := r.expect(idem.Mismatch, other)
		require.Equal(r, idem.Outcome{State: idem.Mismatch}, out, "a mismatch tells nothing of the record")
	}
	zero := req
	zero.Fingerprint = idem.Fingerprint{}
	r.expect(idem.Mismatch, zero)
}

// mismatchInProgress is for stores that know the fingerprint only once there is a response, and for those
// that look at who holds the key before: the client's mistake would then hide behind an answer that says
// try again.
func mismatchInProgress(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	r.mismatches(req)
	r.expect(idem.InProgress, req)
	r.complete(c, text("done"))
	r.replays("done", req)

	// Zero is a fingerprint like any other, not the want of one.
	zero := r.request("zero")
	zero.Fingerprint = idem.Fingerprint{}
	r.fresh(zero)
	r.expect(idem.InProgress, zero)
	r.expect(idem.Mismatch, r.request("zero"))
}

// mismatchDone is for stores that replay one client's response to another request, in the worst case a dry
// run's to the real one.
func mismatchDone(r *rig) {
	req := r.request("k")
	r.done(req, text("done"))
	// Twice, for a store that keeps what it read in a cache of its own.
	for range 2 {
		r.mismatches(req)
		r.replays("done", req)
	}
	zero := r.request("zero")
	zero.Fingerprint = idem.Fingerprint{}
	r.done(zero, text("zero"))
	r.replays("zero", zero)
	r.expect(idem.Mismatch, r.request("zero"))
}

// doneContextClaimsNothing is about callers that have left before they begin: with a claim that nobody
// knows of the key would be stuck for a lease.
func doneContextClaimsNothing(r *rig) {
	cause := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(r.Context())
	cancel(cause)
	req := r.request("k")
	for _, req := range []idem.Request{req, waiting(req)} {
		_, err := r.store.Begin(ctx, req)
		require.ErrorIs(r, err, cause)
	}
	r.expect(idem.Fresh, foreign(req))
}

// nilContextIsRefused passes what a linter would not let pass, for a caller without one.
func nilContextIsRefused(r *rig) {
	var none context.Context
	req := r.request("k")
	require.Error(r, refused(func() error {
		_, err := r.store.Begin(none, req)
		return err
	}), "Begin")
	c := r.fresh(req)
	require.Error(r, refused(func() error { return r.store.Extend(none, c, long) }), "Extend")
	require.Error(r, refused(func() error { return r.store.Abandon(none, c) }), "Abandon")
	require.Error(r, refused(func() error { return r.store.Complete(none, c, text("no")) }), "Complete")
	r.expect(idem.InProgress, req)
}

// refused returns what call does, or its panic as an error.
func refused(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return call()
}
