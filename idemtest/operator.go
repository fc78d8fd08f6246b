package idemtest

import (
	"bytes"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// operatorRows are about what operators are told, and what they write.
func operatorRows() []Row {
	return []Row{{
		Name: "inspect/since",
		Explanation: "Since is when the claim was granted: to who has it now, not to an owner before. Extend does not " +
			"move it, but what is left of the lease.",
		needs: Inspector,
		run:   since,
	}, {
		Name:        "inspect/what is over",
		Explanation: "A record whose TTL, or under TakeOver whose lease, is over is absent: there is nothing to forget.",
		needs:       Inspector,
		run:         forgetWhatIsOver,
	}, {
		Name: "inspect/resolve records as Complete does",
		Explanation: "What Resolve records is what Complete would have: a copy of the whole response, for its own TTL. " +
			"Lookup shows what Begin replays.",
		needs: Inspector,
		run:   resolveRecordsWhole,
	}, {
		Name: "limit/response of Resolve",
		Explanation: "A response that is too large is recorded by Resolve as by Complete: as Truncated, and the error is " +
			"ErrTruncated.",
		needs:  Inspector | MaxResponseBytes,
		config: Config{MaxResponseBytes: 1000},
		run:    resolveTooLarge,
	}}
}

// since is for stores that update a row and leave, or set, its date. Dates are compared with each other, for
// the store's clock may differ from ours.
func since(r *rig) {
	req, other := r.request("k"), r.request("other")
	first := timed(func() { r.fresh(other) })
	lost := r.lapsed(req)
	if r.holds() {
		r.abandon(lost)
	}
	r.sleep(r.short())
	var c idem.Claim
	second := timed(func() { c = r.fresh(req) })
	since := r.find(req).Since
	r.apart(first, second, r.find(other).Since, since)

	r.sleep(r.short())
	r.extend(c, 2*long)
	rec := r.find(req)
	require.True(r, since.Equal(rec.Since), "Extend has not moved Since from %v to %v", since, rec.Since)
	require.Greater(r, rec.Remaining, long)
	require.LessOrEqual(r, rec.Remaining, r.most(2*long))
}

// forgetWhatIsOver is for stores that answer with what their sweeper has not come to yet.
func forgetWhatIsOver(r *rig) {
	over := func(req idem.Request) {
		found, err := r.inspector().Forget(r.Context(), req.Scope, req.Key)
		require.NoError(r, err)
		require.False(r, found, "Forget found something")
	}
	req := r.request("done")
	c := r.fresh(req)
	set := timed(func() { r.complete(c, lasting(text("done"), r.short())) })
	r.sleepPast(set, r.short())
	over(req)
	require.ErrorIs(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, text("no")), idem.ErrNoClaim)
	if !r.holds() {
		req = r.request("lapsed")
		r.lapsed(req)
		over(req)
	}
}

// resolveRecordsWhole is for stores that write a result in two places, one of which is seldom used.
func resolveRecordsWhole(r *rig) {
	want := idem.Response{Status: 410, Header: []byte("header"), Body: []byte("body"), Failed: true}
	passed := want
	passed.Header, passed.Body = bytes.Clone(want.Header), bytes.Clone(want.Body)
	req := r.request("k")
	r.fresh(req)
	require.NoError(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, passed))
	spoil(passed)
	got := r.expect(idem.Replay, req).Response
	r.same(want, got, "Begin")
	rec := r.find(req)
	r.same(want, rec.Response, "Lookup")
	require.True(r, got.StoredAt.Equal(rec.Since))

	req = r.request("for a short time")
	r.fresh(req)
	set := timed(func() {
		require.NoError(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, lasting(want, r.short())))
	})
	r.sleepPast(set, r.short())
	r.expect(idem.Fresh, req)
}

// resolveTooLarge is for stores that look at sizes in one place only.
func resolveTooLarge(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	resp := idem.Response{Status: 410, Body: make([]byte, 1001), Failed: true}
	require.ErrorIs(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, resp), idem.ErrTruncated)
	got := r.expect(idem.Replay, req).Response
	resp.Body, resp.Truncated = nil, true
	r.same(resp, got, "a response that was too large")
	r.lost(r.store.Complete(r.Context(), c, text("late")), "Complete after Resolve")
}
