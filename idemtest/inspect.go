package idemtest

import (
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// inspectRows are about operators.
func inspectRows() []Row {
	return []Row{{
		Name: "inspect/lookup",
		Explanation: "Lookup returns a record as it is, without claiming the key or disturbing anybody: absent, in " +
			"progress with its token and lease, or done with its response.",
		needs: Inspector,
		run:   lookup,
	}, {
		Name: "inspect/forget",
		Explanation: "Forget frees the key, in progress or done, for any fingerprint, and tells whether there was " +
			"anything to forget.",
		needs: Inspector,
		run:   forget,
	}, {
		Name: "inspect/resolve",
		Explanation: "Resolve records a response for a key in progress, whose owner then finds its claim lost. A key " +
			"that is absent or done is ErrNoClaim, and nothing changes.",
		needs: Inspector,
		run:   resolve,
	}}
}

// find looks up the record of req, which must be there.
func (r *rig) find(req idem.Request) idem.Record {
	r.Helper()
	rec, found, err := r.inspector().Lookup(r.Context(), req.Scope, req.Key)
	require.NoError(r, err, "Lookup %q", req.Key)
	require.True(r, found, "Lookup %q found the record", req.Key)
	require.Equal(r, [2]string{req.Scope, req.Key}, [2]string{rec.Scope, rec.Key})
	require.Equal(r, req.Fingerprint, rec.Fingerprint)
	require.WithinDuration(r, time.Now(), rec.Since, time.Hour)
	return rec
}

// absent wants that there is no record.
func (r *rig) absent(req idem.Request) {
	r.Helper()
	rec, found, err := r.inspector().Lookup(r.Context(), req.Scope, req.Key)
	require.NoError(r, err, "Lookup %q", req.Key)
	require.False(r, found, "Lookup %q found a record", req.Key)
	require.Equal(r, idem.Record{}, rec)
}

// lookup is for stores that look by claiming.
func lookup(r *rig) {
	req := r.request("k")
	r.absent(req)
	r.absent(req)
	c := r.fresh(req)
	for range 2 {
		rec := r.find(req)
		require.Equal(r, idem.InProgress.String(), rec.State.String())
		require.Equal(r, c.Token, rec.Token)
		require.Positive(r, rec.Remaining)
		require.LessOrEqual(r, rec.Remaining, r.most(long))
		require.Zero(r, rec.Response)
	}
	r.complete(c, lasting(idem.Response{Status: 201, Header: []byte("header"), Body: []byte("body")}, 2*long))
	for range 2 {
		rec := r.find(req)
		require.Equal(r, idem.Replay.String(), rec.State.String())
		require.Equal(r, c.Token, rec.Token)
		require.Greater(r, rec.Remaining, long)
		require.LessOrEqual(r, rec.Remaining, r.most(2*long))
		r.same(idem.Response{Status: 201, Header: []byte("header"), Body: []byte("body")}, rec.Response, "Lookup")
		require.True(r, rec.Since.Equal(rec.Response.StoredAt))
		spoil(rec.Response)
	}
	r.replays("body", req)

	gone := r.request("gone")
	c = r.fresh(gone)
	set := timed(func() { r.complete(c, lasting(text("done"), r.short())) })
	r.sleepPast(set, r.short())
	r.absent(gone)
	if !r.holds() {
		r.lapsed(gone)
		r.absent(gone)
	}
}

// forget is about keys that are stuck, and what an operator is told about them.
func forget(r *rig) {
	req := r.request("k")
	found, err := r.inspector().Forget(r.Context(), req.Scope, req.Key)
	require.NoError(r, err)
	require.False(r, found, "an absent key")
	r.fresh(req)
	r.forget(req.Key)
	r.absent(req)
	r.done(foreign(req), text("done"))
	r.forget(req.Key)
	r.absent(req)
	found, err = r.inspector().Forget(r.Context(), req.Scope, req.Key)
	require.NoError(r, err)
	require.False(r, found, "a forgotten key")
	r.fresh(req)
}

// resolve is about operators that know better than the owner, and those that came too late.
func resolve(r *rig) {
	req := r.request("k")
	inspector, ctx := r.inspector(), r.Context()
	require.ErrorIs(r, inspector.Resolve(ctx, req.Scope, req.Key, text("no")), idem.ErrNoClaim, "an absent key")
	c := r.fresh(req)
	require.Error(r, inspector.Resolve(ctx, req.Scope, req.Key, lasting(text("no"), math.MinInt64)), "a negative TTL")
	r.expect(idem.InProgress, req)
	resp := idem.Response{Status: 410, Header: []byte("header"), Body: []byte("resolved"), Failed: true}
	require.NoError(r, inspector.Resolve(ctx, req.Scope, req.Key, resp))
	r.same(resp, r.expect(idem.Replay, req).Response, "Resolve")
	r.expect(idem.Mismatch, foreign(req))
	r.lost(r.store.Complete(ctx, c, text("late")), "Complete after Resolve")
	r.lost(r.store.Extend(ctx, c, long), "Extend after Resolve")
	r.lost(r.store.Abandon(ctx, c), "Abandon after Resolve")
	require.ErrorIs(r, inspector.Resolve(ctx, req.Scope, req.Key, text("no")), idem.ErrNoClaim, "a done key")
	r.replays("resolved", req)
	if !r.holds() {
		req = r.request("lapsed")
		r.lapsed(req)
		require.ErrorIs(r, inspector.Resolve(ctx, req.Scope, req.Key, text("no")), idem.ErrNoClaim, "a lease that ran out")
	}
}
