package idemtest

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// waitRows are about what wakes those who wait.
func waitRows() []Row {
	return []Row{{
		Name:        "wait/complete wakes all",
		Explanation: "When the owner completes, all who wait wake and replay its response, and so does who comes later.",
		run:         completeWakesAll,
	}, {
		Name: "wait/abandon wakes one",
		Explanation: "When the owner abandons, exactly one of those who wait becomes the owner; the others go on " +
			"waiting, for the new owner.",
		run: func(r *rig) { r.passesOn(r.abandon) },
	}, {
		Name: "wait/end of the lease wakes one",
		Explanation: "When the owner's lease runs out under TakeOver, and not before, exactly one of those who wait " +
			"becomes the owner, without anybody else having to call.",
		needs: TakeOver,
		run:   endOfTheLeaseWakesOne,
	}, {
		Name:        "wait/forget wakes one",
		Explanation: "Forget takes the claim from its owner; exactly one of those who wait becomes the next one.",
		needs:       Inspector,
		run:         func(r *rig) { r.passesOn(func(c idem.Claim) { r.forget(c.Key) }) },
	}, {
		Name:        "wait/resolve wakes all",
		Explanation: "When an operator resolves a key, all who wait wake and replay that response.",
		needs:       Inspector,
		run:         resolveWakesAll,
	}, {
		Name: "wait/extend moves the end",
		Explanation: "Those who wait do so for the lease's end as it is now, later or sooner, not as it was when they " +
			"came.",
		run: extendWhileOthersWait,
	}}
}

// completeWakesAll is for stores that wake by a channel with room for some, or one after the other.
func completeWakesAll(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	crowd := r.crowd(20, req)
	crowd.quiet()
	r.complete(c, text("done"))
	crowd.join(req)
	for range 21 {
		out := crowd.next(idem.Replay)
		r.same(text("done"), out.Response, "what a waiter replays")
		require.Zero(r, out.Remaining)
		require.Equal(r, idem.Claim{}, out.Claim)
	}
	r.replays("done", req)
}

// passesOn has a crowd wait for an owner that loses its claim, one owner after the other.
func (r *rig) passesOn(lose func(idem.Claim)) {
	r.Helper()
	req := r.request("k")
	c := r.fresh(req)
	crowd := r.crowd(5, req)
	for range 4 {
		lose(c)
		out := crowd.next(idem.Fresh)
		require.Positive(r, out.Remaining)
		require.LessOrEqual(r, out.Remaining, r.most(req.Lease))
		crowd.quiet()
		r.expect(idem.InProgress, req)
		c = out.Claim
	}
	r.complete(c, text("done"))
	crowd.next(idem.Replay)
	r.replays("done", req)
}

// endOfTheLeaseWakesOne is for stores that only hear of a dead owner when somebody calls.
func endOfTheLeaseWakesOne(r *rig) {
	req := r.request("k")
	granted := time.Now()
	r.fresh(r.brief(req))
	crowd := r.crowd(5, req)
	a := crowd.any()
	require.NoError(r, a.err)
	require.Equal(r, idem.Fresh.String(), a.out.State.String())
	require.False(r, a.at.Before(granted.Add(r.short()-r.maker.Resolution)), "woken before the lease ran out")
	crowd.quiet()
	// The new owner has the lease that it asked for, not the one of its predecessor.
	require.Greater(r, r.expect(idem.InProgress, req).Remaining, long/2)
	r.complete(a.out.Claim, text("done"))
	crowd.all(4, idem.Replay)
}

// resolveWakesAll is for stores in which only Complete knows of those who wait.
func resolveWakesAll(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	crowd := r.crowd(5, req)
	require.NoError(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, text("resolved")))
	for range 5 {
		require.Equal(r, "resolved", string(crowd.next(idem.Replay).Response.Body))
	}
	r.lost(r.store.Complete(r.Context(), c, text("late")), "Complete after Resolve")
}

// extendWhileOthersWait is for stores whose waiters set a timer once.
func extendWhileOthersWait(r *rig) {
	req := r.request("sooner")
	c := r.fresh(req)
	crowd := r.crowd(1, req)
	extended := timed(func() { r.extend(c, r.short()) })
	a := crowd.any()
	require.NoError(r, a.err)
	r.judge(extended, r.short(), span{a.at, a.at}, a.out.State, idem.InProgress, r.afterLease())

	// An Extend that comes too late shows nothing. Then the lease must be longer.
	for lease := r.short(); lease < long && !r.putsOff(lease); lease *= 4 {
		r.Logf("Extend came too late for a lease of %v", lease)
	}
}

// putsOff extends the lease of a key that is waited for. It returns false when that was too late.
func (r *rig) putsOff(lease time.Duration) bool {
	req := r.request("later than " + lease.String())
	req.Lease = lease
	granted := time.Now()
	c := r.fresh(req)
	crowd := r.newCrowd(1, req)
	r.sleep(lease / 4)
	err := r.store.Extend(r.Context(), c, long)
	if !time.Now().Before(granted.Add(lease - r.maker.Resolution)) {
		return false
	}
	require.NoError(r, err)
	r.sleep(2 * lease)
	crowd.quiet()
	r.complete(c, text("done"))
	crowd.next(idem.Replay)
	return true
}

// orderRows are about who of those who wait is the next owner, and who need not wait.
func orderRows() []Row {
	return []Row{{
		Name: "wait/first come first served",
		Explanation: "Those who wait become owners in the order in which they came, whether an owner abandons or, under " +
			"TakeOver, its lease runs out.",
		needs: FirstComeFirstServed,
		run:   firstComeFirstServed,
	}, {
		Name: "wait/only for an owner",
		Explanation: "Wait on a key that nobody holds is Fresh at once, and on a done one a replay; only an owner is " +
			"waited for.",
		run: waitOnlyForAnOwner,
	}}
}

// firstComeFirstServed is for stores that wake everybody and let them race: who is unlucky waits for ever.
func firstComeFirstServed(r *rig) {
	r.inOrder("abandon", long)
	if !r.holds() {
		r.inOrder("lease", r.short())
	}
}

// inOrder has six callers wait whose leases are of that length. It tries again when they were not served in
// order, with more time between them: they may not have begun to wait in the order in which they were to.
// By chance six callers are in order once in 720 times.
func (r *rig) inOrder(key string, lease time.Duration) {
	r.Helper()
	want := []int{0, 1, 2, 3, 4, 5}
	var got []int
	for pause := r.stretch(calm) / 4; pause < r.stretch(20*calm); pause *= 3 {
		req := r.request(key + " " + pause.String())
		c := r.fresh(req)
		req.Lease = lease
		crowd := r.newCrowd(0, req)
		for range want {
			crowd.join(req)
			r.sleep(pause)
		}
		if got = crowd.serve(c, len(want)); slices.Equal(want, got) {
			return
		}
	}
	require.Equal(r, want, got, "the order in which those who wait became owners")
}

// serve has n callers be owners until they abandon, or else until their short lease runs out.
func (c *crowd) serve(owner idem.Claim, n int) (order []int) {
	c.r.Helper()
	c.r.abandon(owner)
	for range n {
		a := c.any()
		require.NoError(c.r, a.err)
		require.Equal(c.r, idem.Fresh.String(), a.out.State.String())
		if order = append(order, a.who); a.out.Remaining > long/2 {
			c.r.abandon(a.out.Claim)
		}
	}
	return order
}

// waitOnlyForAnOwner is for stores that wait first and look afterwards.
func waitOnlyForAnOwner(r *rig) {
	req := r.request("k")
	c := r.fresh(waiting(req))
	r.complete(c, text("done"))
	r.replays("done", waiting(req))

	req = r.request("abandoned")
	r.abandon(r.fresh(waiting(req)))
	r.fresh(waiting(req))
	if !r.holds() {
		req = r.request("lapsed")
		r.lapsed(req)
		r.fresh(waiting(req))
	}
}
