package idemtest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// handOverRows are about what those who waited are told.
func handOverRows() []Row {
	return []Row{{
		Name: "wait/new owner is like any other",
		Explanation: "Who becomes the owner after it waited has a claim like any other: its scope, key and fingerprint, " +
			"a token above the one before, whose owner has lost its claim, and a lease that counts from then on.",
		run: newOwnerIsLikeAnyOther,
	}, {
		Name: "wait/replay is whole",
		Explanation: "What those who waited replay is what everybody else does: header, body, status and flags, and " +
			"when it was stored.",
		run: waitersReplayAll,
	}, {
		Name: "wait/keys are apart",
		Explanation: "Those who wait do so for one key of one scope: what becomes of the same key in another scope, or " +
			"of one that looks like it, does not wake them.",
		run: waitersOfOtherKeys,
	}, {
		Name: "wait/caps give back",
		Explanation: "Whoever waited no longer counts as a waiter, whether a result, a claim, the lease's end or its own " +
			"context ended that: there is room for as many as before.",
		needs:  MaxWaiters | MaxWaitersPerKey,
		config: Config{MaxWaiters: 4, MaxWaitersPerKey: 4},
		run:    capsGiveBack,
	}}
}

// newOwnerIsLikeAnyOther is for stores that hand a claim over by other means than Begin grants one.
func newOwnerIsLikeAnyOther(r *rig) {
	req := r.request("abandoned")
	r.handsOver(req, r.abandon)
	if r.inspects() {
		r.handsOver(r.request("forgotten"), func(c idem.Claim) { r.forget(c.Key) })
	}
	if !r.holds() {
		req = r.request("lapsed")
		req.Lease = 5 * r.short() // so that it lasts longer than the waiter's
		r.handsOver(req, func(idem.Claim) {})
	}
}

// handsOver has a caller wait for longer than its own lease, until the owner loses its claim.
func (r *rig) handsOver(req idem.Request, lose func(idem.Claim)) {
	r.Helper()
	lease := 4 * r.short()
	granted := time.Now()
	former := r.fresh(req)
	waits := req
	waits.Lease = lease
	crowd := r.newCrowd(1, waits)
	r.sleep(lease)
	free := time.Now()
	if req.Lease < long {
		free = granted.Add(req.Lease - r.maker.Resolution)
	}
	lose(former)
	a := crowd.any()
	require.NoError(r, a.err)
	require.Equal(r, idem.Fresh.String(), a.out.State.String())
	c := a.out.Claim
	require.Equal(r, [2]string{req.Scope, req.Key}, [2]string{c.Scope, c.Key})
	require.Equal(r, req.Fingerprint, c.Fingerprint)
	require.Greater(r, c.Token, former.Token, "token of the new owner")
	require.LessOrEqual(r, a.out.Remaining, r.most(lease))

	r.sleep(r.short())
	var out idem.Outcome
	asked := timed(func() { out = r.begin(req) })
	r.judge(span{free, a.at}, lease, asked, out.State, idem.InProgress, r.afterLease())
	if out.State == idem.Fresh {
		return // the machine is so slow that the lease is over
	}
	r.extend(c, long)
	r.lost(r.store.Complete(r.Context(), former, text("former")), "Complete of the former owner")
	r.lost(r.store.Extend(r.Context(), former, long), "Extend of the former owner")
	r.lost(r.store.Abandon(r.Context(), former), "Abandon of the former owner")
	r.expect(idem.InProgress, req)
	r.complete(c, text("new"))
	r.replays("new", req)
}

// waitersReplayAll is for stores that tell those who wait the result, rather than to look.
func waitersReplayAll(r *rig) {
	claims, crowds := map[string]idem.Claim{}, map[string]*crowd{}
	for name := range responses() {
		req := r.request(name)
		claims[name], crowds[name] = r.fresh(req), r.newCrowd(1, req)
	}
	r.settle()
	for name, resp := range responses() {
		r.complete(claims[name], resp)
		got := crowds[name].next(idem.Replay).Response
		r.same(resp, got, name)
		r.sleep(time.Millisecond) // so that another look would be at another time
		later := r.expect(idem.Replay, r.request(name)).Response
		require.True(r, later.StoredAt.Equal(got.StoredAt), "StoredAt is the same for who waited")
	}
}

// waitersOfOtherKeys is for stores that know those who wait by less than scope and key.
func waitersOfOtherKeys(r *rig) {
	requests := []idem.Request{r.request("k"), r.request("k"), r.request("K"), r.request("k "), r.request("k")}
	requests[1].Scope += " 2"
	requests[4].Scope, requests[4].Key = "", r.scope+"k"
	claims, crowds := make([]idem.Claim, len(requests)), make([]*crowd, len(requests))
	for i, req := range requests {
		claims[i], crowds[i] = r.fresh(req), r.newCrowd(1, req)
	}
	r.settle()
	for i := range requests {
		r.complete(claims[i], text(fmt.Sprint(i)))
		require.Equal(r, fmt.Sprint(i), string(crowds[i].next(idem.Replay).Response.Body))
		for _, others := range crowds[i+1:] {
			others.quiet()
		}
	}
}

// capsGiveBack is for stores that count those who wait, and forget one way in which that ends.
func capsGiveBack(r *rig) {
	const n = 4
	ways := map[string]func(idem.Claim, *crowd){
		"complete": func(c idem.Claim, crowd *crowd) {
			r.complete(c, text("done"))
			crowd.all(n, idem.Replay)
		},
		"abandon": func(c idem.Claim, crowd *crowd) {
			for range n {
				r.abandon(c)
				c = crowd.next(idem.Fresh).Claim
			}
			r.abandon(c)
		},
		"leave": func(c idem.Claim, crowd *crowd) {
			for i := range n {
				crowd.leave[i](errLeft)
				require.ErrorIs(r, crowd.any().err, errLeft)
			}
			r.abandon(c)
		},
		"lease": func(c idem.Claim, crowd *crowd) {
			r.extend(c, r.short())
			if r.holds() {
				crowd.all(n, idem.Unknown)
				return
			}
			r.complete(crowd.next(idem.Fresh).Claim, text("done"))
			crowd.all(n-1, idem.Replay)
		},
	}
	for name, end := range ways {
		for round := range 2 {
			req := r.request(fmt.Sprint(name, " ", round))
			c := r.fresh(req)
			crowd := r.crowd(n, req)
			crowd.quiet()
			end(c, crowd)
		}
	}
}
