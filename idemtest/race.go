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

// raceRows are about calls that meet on a key that changes hands.
func raceRows() []Row {
	return []Row{{
		Name: "race/complete or a new owner",
		Explanation: "When Complete of a claim that is gone or lapsed meets a Begin, one of them wins: the result is " +
			"recorded and Begin replays it, or Begin is Fresh and Complete is ErrClaimLost.",
		run: completeOrNewOwner,
	}, {
		Name: "race/extend or a new owner",
		Explanation: "When Extend of a claim that is gone or lapsed meets a Begin, one of them wins: the claim is back " +
			"and Begin finds it in progress, or Begin is Fresh and Extend is ErrClaimLost.",
		run: extendOrNewOwner,
	}, {
		Name: "race/abandon and a new owner",
		Explanation: "When Abandon of a claim that is gone or lapsed meets a Begin, Begin is Fresh and stays the owner, " +
			"whichever came first.",
		run: abandonAndNewOwner,
	}, {
		Name: "race/complete twice",
		Explanation: "When a claim is completed twice at once, both succeed, and one response is recorded: what is " +
			"replayed once is replayed always.",
		run: completeTwiceAtOnce,
	}, {
		Name: "race/resolve or complete",
		Explanation: "When Resolve meets the owner's Complete, one of them wins: the owner's claim is lost, or the " +
			"operator is told ErrNoClaim.",
		needs: Inspector,
		run:   resolveOrComplete,
	}, {
		Name: "context/cut off claims nothing",
		Explanation: "A Begin that fails because its context ends while it runs returns the context's cause and leaves " +
			"no claim behind.",
		run: cutOffClaimsNothing,
	}}
}

// meet runs two calls at once. Which is a little ahead changes with the round.
func meet(round int, one, other func()) {
	start := make(chan struct{})
	var both sync.WaitGroup
	if round%2 == 1 {
		one, other = other, one
	}
	for _, call := range []func(){one, other} {
		both.Go(func() {
			<-start
			call()
		})
	}
	close(start)
	both.Wait()
}

// loose has call meet a Begin, on keys whose owners hold them no more, and passes what came of it to judge.
func (r *rig) loose(call func(idem.Claim) error, judge func(idem.Request, idem.Outcome, error)) {
	r.Helper()
	n := 10 * r.rounds()
	requests, claims := make([]idem.Request, n), make([]idem.Claim, n)
	granted := timed(func() {
		for i := range n {
			requests[i] = r.request(fmt.Sprint(i))
			if i%2 == 0 && !r.holds() {
				claims[i] = r.fresh(r.brief(requests[i]))
				continue
			}
			claims[i] = r.fresh(requests[i])
			r.abandon(claims[i])
		}
	})
	r.sleepPast(granted, r.short())
	for i, req := range requests {
		var out idem.Outcome
		var err, failed error
		meet(i/2, func() { err = call(claims[i]) }, func() { out, failed = r.store.Begin(r.Context(), req) })
		require.NoError(r, failed, "Begin %q", req.Key)
		if err != nil {
			r.lost(err, "the former owner's call")
		}
		judge(req, out, err)
	}
}

// oneWins wants Begin to be Fresh if the former owner's call has failed, and to find other if it has not.
func (r *rig) oneWins(out idem.Outcome, err error, other idem.State) (begun bool) {
	r.Helper()
	want := other
	if err != nil {
		want = idem.Fresh
	}
	require.Equal(r, want.String(), out.State.String(), "what Begin found when the former owner was told %v", err)
	return err != nil
}

// completeOrNewOwner is for stores that look at the token and then write: the new owner runs, and its result
// is another one's.
func completeOrNewOwner(r *rig) {
	r.loose(func(c idem.Claim) error { return r.store.Complete(r.Context(), c, text("former")) },
		func(req idem.Request, out idem.Outcome, err error) {
			if !r.oneWins(out, err, idem.Replay) {
				r.replays("former", req)
				return
			}
			r.complete(out.Claim, text("new"))
			r.replays("new", req)
		})
}

// extendOrNewOwner is for the same stores: two owners would be told that the key is theirs.
func extendOrNewOwner(r *rig) {
	r.loose(func(c idem.Claim) error { return r.store.Extend(r.Context(), c, long) },
		func(req idem.Request, out idem.Outcome, err error) {
			if r.oneWins(out, err, idem.InProgress) {
				r.complete(out.Claim, text("new"))
				r.replays("new", req)
				return
			}
			r.expect(idem.InProgress, req)
		})
}

// abandonAndNewOwner is for the same stores, and for those that delete by key: the key would be free under
// the new owner.
func abandonAndNewOwner(r *rig) {
	r.loose(func(c idem.Claim) error { return r.store.Abandon(r.Context(), c) },
		func(req idem.Request, out idem.Outcome, _ error) {
			require.Equal(r, idem.Fresh.String(), out.State.String())
			r.expect(idem.InProgress, req)
			r.complete(out.Claim, text("new"))
			r.replays("new", req)
		})
}

// completeTwiceAtOnce is about a Complete that is sent again because its answer takes long.
func completeTwiceAtOnce(r *rig) {
	for i := range 10 * r.rounds() {
		req := r.request(fmt.Sprint(i))
		c := r.fresh(req)
		var outs [2]idem.Outcome
		var errs [2]error
		complete := func(i int) func() {
			return func() {
				if errs[i] = r.store.Complete(r.Context(), c, text(fmt.Sprint(i))); errs[i] == nil {
					outs[i], errs[i] = r.store.Begin(r.Context(), req)
				}
			}
		}
		meet(i, complete(0), complete(1))
		require.NoError(r, errors.Join(errs[:]...))
		want := r.expect(idem.Replay, req)
		for _, out := range outs {
			require.Equal(r, idem.Replay.String(), out.State.String())
			require.Equal(r, string(want.Response.Body), string(out.Response.Body), "body that was replayed before")
			require.True(r, want.Response.StoredAt.Equal(out.Response.StoredAt), "StoredAt stays as it is")
		}
	}
}

// resolveOrComplete is for stores in which operators need not look at what is there.
func resolveOrComplete(r *rig) {
	for i := range 10 * r.rounds() {
		req := r.request(fmt.Sprint(i))
		c := r.fresh(req)
		var completed, resolved error
		meet(i, func() { completed = r.store.Complete(r.Context(), c, text("completed")) }, func() {
			resolved = r.inspector().Resolve(r.Context(), req.Scope, req.Key, text("resolved"))
		})
		if completed == nil {
			require.ErrorIs(r, resolved, idem.ErrNoClaim, "Resolve, though Complete succeeded")
			r.replays("completed", req)
			continue
		}
		r.lost(completed, "Complete")
		require.NoError(r, resolved, "Resolve, though the owner's claim was lost")
		r.replays("resolved", req)
	}
}

// cutOffClaimsNothing is for stores on a server, which claims the key while the answer is given up. Nobody
// knows of the claim then, and the key is stuck for a lease. The store may need a moment to undo it.
func cutOffClaimsNothing(r *rig) {
	pilot := timed(func() { r.fresh(r.request("pilot")) })
	n := 5 * r.rounds()
	var failed []idem.Request
	for i := range n {
		ctx, cancel := context.WithCancelCause(r.Context())
		req := r.request(fmt.Sprint(i))
		// From at once to well after the answer.
		timer := time.AfterFunc(2*pilot.to.Sub(pilot.from)*time.Duration(i)/time.Duration(n), func() { cancel(errLeft) })
		out, err := r.store.Begin(ctx, req)
		timer.Stop()
		cancel(nil)
		if err != nil {
			require.ErrorIs(r, err, errLeft)
			failed = append(failed, req)
			continue
		}
		require.Equal(r, idem.Fresh.String(), out.State.String())
		r.complete(out.Claim, text("done"))
	}
	for _, req := range failed {
		r.eventually(func() bool { return r.begin(foreign(req)).State == idem.Fresh }, "Fresh after a Begin that failed")
	}
}
