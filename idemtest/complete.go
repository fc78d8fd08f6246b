package idemtest

import (
	"encoding/json"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// completeRows are about who may complete a claim.
func completeRows() []Row {
	return []Row{{
		Name: "complete/late",
		Explanation: "Complete succeeds while the claim's token is the key's current one, even when its lease ran out, " +
			"as long as nobody took over.",
		run: completeLate,
	}, {
		Name: "complete/lost",
		Explanation: "An owner whose key somebody else has claimed, or completed, gets ErrClaimLost from Complete, and " +
			"nothing changes: the new owner's claim and result stay. Nor does a token that was never granted " +
			"pass.",
		run: completeLost,
	}, {
		Name: "complete/twice",
		Explanation: "Completing the same claim again returns nil and changes nothing: not the response, not when it " +
			"was stored, not the end of its TTL.",
		run: completeTwice,
	}, {
		Name: "complete/restores a record that is gone",
		Explanation: "Complete succeeds when the record is gone and nobody else holds the key. The record is then what " +
			"it would have been, fingerprint included.",
		run: completeRestores,
	}, {
		Name:        "complete/zero claim",
		Explanation: "Complete and Extend of the zero Claim are ErrClaimLost.",
		run: func(r *rig) {
			r.lost(r.store.Complete(r.Context(), idem.Claim{}, text("no")), "Complete")
			r.lost(r.store.Extend(r.Context(), idem.Claim{}, long), "Extend")
		},
	}, {
		Name: "complete/claim that was marshalled",
		Explanation: "A Claim is a plain value: what comes out of json.Unmarshal, in another process for instance, can " +
			"be extended, abandoned and completed like the one that went in.",
		run: marshalledClaim,
	}, {
		Name: "complete/claim of another key",
		Explanation: "A Claim is a plain value: changing its key makes it a claim of that key. It is lost, or completes " +
			"what the next Begin of that key replays. The key that it was granted for is not touched.",
		run: claimOfAnotherKey,
	}}
}

// restoreRows are about results that come late.
func restoreRows() []Row {
	return []Row{{
		Name: "complete/restores it whole",
		Explanation: "What Complete records late, or restores, is what it would have been in time: the whole response, " +
			"for its own TTL. Completing again changes nothing. It does not matter that others had the key " +
			"in between, as long as nobody holds it.",
		run: completeRestoresWhole,
	}}
}

// completeLate is about an owner that paused for longer than its lease, which is no harm if nobody else
// ran.
func completeLate(r *rig) {
	req := r.request("k")
	c := r.lapsed(req)
	r.complete(c, text("late"))
	r.replays("late", req)
	r.expect(idem.Mismatch, foreign(req))
}

// completeLost is for stores that complete by key: the owner that was taken over would overwrite the result
// that the new one's client has seen.
func completeLost(r *rig) {
	req := r.request("k")
	lost, current := r.deprived(req)
	r.lost(r.store.Complete(r.Context(), lost, text("lost")), "while the new owner runs")
	for _, token := range []uint64{current.Token - 1, current.Token + 1, current.Token + 1<<32, 0} {
		forged := current
		forged.Token = token
		r.lost(r.store.Complete(r.Context(), forged, text("forged")), "with a token that was not granted")
	}
	r.expect(idem.InProgress, req)
	r.complete(current, text("current"))
	r.lost(r.store.Complete(r.Context(), lost, text("lost")), "when the new owner is done")
	r.replays("current", req)

	if r.inspects() {
		lost = r.fresh(r.request("forgotten"))
		r.forget("forgotten")
		current = r.fresh(r.request("forgotten"))
		r.lost(r.store.Complete(r.Context(), lost, text("lost")), "after Forget and a new claim")
		r.complete(current, text("current"))
		r.replays("current", r.request("forgotten"))
	}
}

// completeTwice is about a Complete whose answer was lost on the way, so that it is sent again, later.
func completeTwice(r *rig) {
	req := r.request("shorter")
	c := r.done(req, lasting(text("first"), long))
	first := r.expect(idem.Replay, req).Response
	r.complete(c, lasting(text("second"), r.short()))
	r.sleep(r.short() + r.maker.Resolution)
	again := r.expect(idem.Replay, req).Response
	r.same(text("first"), again, "after a second Complete")
	require.True(r, first.StoredAt.Equal(again.StoredAt), "StoredAt stays as it is")

	req, ttl := r.request("longer"), 4*r.short()
	c = r.fresh(req)
	set := timed(func() { r.complete(c, lasting(text("first"), ttl)) })
	second := timed(func() { r.complete(c, lasting(text("second"), long)) })
	if !second.to.Before(set.from.Add(ttl - r.maker.Resolution)) {
		return // it may have found no record, and restored it
	}
	r.sleepPast(set, ttl)
	r.expect(idem.Fresh, req)
}

// completeRestores is for stores that update a record, of which none is left: the operation ran, and would
// run again.
func completeRestores(r *rig) {
	// Each of these makes the record go.
	ways := map[string]func(c idem.Claim){
		"abandoned": r.abandon,
	}
	if r.inspects() {
		ways["forgotten"] = func(c idem.Claim) { r.forget(c.Key) }
	}
	for name, lose := range ways {
		req := r.request(name)
		c := r.fresh(req)
		lose(c)
		r.complete(c, text("restored"))
		r.replays("restored", req)
		r.expect(idem.Mismatch, foreign(req))

		// And so for Extend: the claim is back.
		req = r.request(name + " and extended")
		c = r.fresh(req)
		lose(c)
		r.extend(c, long)
		r.runsLong(req)
		r.complete(c, text("restored"))
		r.replays("restored", req)
		r.expect(idem.Mismatch, foreign(req))
	}
}

// completeRestoresWhole is for stores whose second way to write a record differs from the first.
func completeRestoresWhole(r *rig) {
	resp := idem.Response{Status: 409, Header: []byte("header"), Body: []byte("body"), Failed: true}
	ways := map[string]func(idem.Request) idem.Claim{
		"late": r.lapsed,
		"abandoned": func(req idem.Request) idem.Claim {
			c := r.fresh(req)
			r.abandon(c)
			return c
		},
		"abandoned by another since": func(req idem.Request) idem.Claim {
			c := r.fresh(req)
			r.abandon(c)
			r.abandon(r.fresh(foreign(req)))
			return c
		},
	}
	if r.inspects() {
		ways["forgotten"] = func(req idem.Request) idem.Claim {
			c := r.fresh(req)
			r.forget(req.Key)
			return c
		}
	}
	for name, gone := range ways {
		req, brief := r.request(name), r.request(name+", for a short time")
		c := gone(req)
		r.complete(c, resp)
		r.complete(c, text("again"))
		r.abandon(c)
		r.same(resp, r.expect(idem.Replay, req).Response, name)
		r.expect(idem.Mismatch, foreign(req))
		c = gone(brief)
		set := timed(func() { r.complete(c, lasting(resp, r.short())) })
		r.sleepPast(set, r.short())
		r.expect(idem.Fresh, brief)
	}
}

// marshalledClaim is for stores that know a claim by something that json.Marshal does not see.
func marshalledClaim(r *rig) {
	again := func(c idem.Claim) (d idem.Claim) {
		data, err := json.Marshal(c)
		require.NoError(r, err)
		require.NoError(r, json.Unmarshal(data, &d))
		return d
	}
	req := r.request("héllo <&> \"key\"")
	c := r.fresh(req)
	r.abandon(again(c))
	c = again(r.fresh(req))
	r.extend(c, long)
	r.expect(idem.InProgress, req)
	r.complete(c, text("done"))
	r.replays("done", req)
	r.abandon(again(c))
	r.replays("done", req)
}

// claimOfAnotherKey is for stores that trust what they hid in a claim, and not what can be seen in it.
func claimOfAnotherKey(r *rig) {
	req, other := r.request("granted"), r.request("other")
	c := r.fresh(req)
	c.Key = other.Key
	if err := r.store.Complete(r.Context(), c, text("other")); err == nil {
		r.replays("other", other)
	} else {
		r.lost(err, "Complete")
		r.expect(idem.Fresh, other)
	}
	r.expect(idem.InProgress, req)
}

// abandonRows are about giving a claim up.
func abandonRows() []Row {
	return []Row{{
		Name: "abandon/frees the key",
		Explanation: "Abandon frees the key for the next caller, whatever the fingerprint, even after the lease has run " +
			"out.",
		run: abandonFrees,
	}, {
		Name: "abandon/when there is nothing to abandon",
		Explanation: "After Complete, on a zero Claim, a second time or on an absent key Abandon does nothing and " +
			"returns nil: deferring it is always safe.",
		run: abandonNothing,
	}, {
		Name: "abandon/lost",
		Explanation: "Abandon with another token than the key's current one is ErrClaimLost, and nothing changes, " +
			"whether the new owner runs or is done.",
		run: abandonLost,
	}}
}

// abandonFrees is for stores that release the claim and keep the record, with the fingerprint in it.
func abandonFrees(r *rig) {
	req := r.request("k")
	r.abandon(r.fresh(req))
	r.abandon(r.fresh(foreign(req)))
	c := r.lapsed(req)
	r.abandon(c)
	r.done(foreign(req), text("done"))
	r.replays("done", foreign(req))
}

// abandonNothing is about the deferred Abandon, which runs whatever has happened before.
func abandonNothing(r *rig) {
	require.NoError(r, r.store.Abandon(r.Context(), idem.Claim{}), "zero Claim")
	req := r.request("k")
	c := r.fresh(req)
	r.abandon(c)
	r.abandon(c)
	c = r.done(req, text("done"))
	r.abandon(c)
	r.abandon(c)
	r.replays("done", req)
	r.expect(idem.Mismatch, foreign(req))

	// A record that is gone leaves nothing to abandon either.
	req = r.request("gone")
	c = r.fresh(req)
	set := timed(func() { r.complete(c, lasting(text("done"), r.short())) })
	r.sleepPast(set, r.short())
	r.abandon(c)
	if r.inspects() {
		c = r.fresh(req)
		r.forget(req.Key)
		r.abandon(c)
	}
	r.expect(idem.Fresh, req)
}

// abandonLost is for stores that release by key: a slow owner would free the key under the new one.
func abandonLost(r *rig) {
	req := r.request("k")
	lost, current := r.deprived(req)
	r.lost(r.store.Abandon(r.Context(), lost), "while the new owner runs")
	r.expect(idem.InProgress, req)
	r.complete(current, text("current"))
	r.lost(r.store.Abandon(r.Context(), lost), "when the new owner is done")
	r.replays("current", req)
}

// extendRows are about moving a lease's end.
func extendRows() []Row {
	return []Row{{
		Name:        "extend/moves the end",
		Explanation: "Extend moves the lease's end to lease from now, whether that is later than it was or sooner.",
		run:         extendMovesTheEnd,
	}, {
		Name: "extend/late",
		Explanation: "Extend by the current token succeeds even when the lease has run out, as long as nobody took " +
			"over.",
		run: extendLate,
	}, {
		Name: "extend/lost",
		Explanation: "Extend of a claim that was lost is ErrClaimLost, and nothing changes, whether the new owner runs " +
			"or is done.",
		run: extendLost,
	}, {
		Name:        "extend/completed",
		Explanation: "Extend of a claim that was completed is ErrClaimLost; the response and its TTL stay.",
		run:         extendCompleted,
	}}
}

// extendMovesTheEnd is for stores that add to the end that there was, or take the later one.
func extendMovesTheEnd(r *rig) {
	req := r.request("later")
	c := r.fresh(r.brief(req))
	r.extend(c, long)
	r.sleep(r.short() + r.maker.Resolution)
	r.runsLong(req)
	r.complete(c, text("done"))

	req = r.request("sooner")
	c = r.fresh(req)
	extended := timed(func() { r.extend(c, r.short()) })
	r.sleepPast(extended, r.short())
	r.expect(r.afterLease(), req)
}

// extendLate is about a heartbeat that comes late: nobody else runs, so the operation may go on.
func extendLate(r *rig) {
	req := r.request("k")
	c := r.lapsed(req)
	r.extend(c, long)
	r.runsLong(req)
	r.complete(c, text("done"))
	r.replays("done", req)
	r.expect(idem.Mismatch, foreign(req))
}

// extendLost is for stores that extend by key: two owners would hold it for as long as both live.
func extendLost(r *rig) {
	req := r.request("k")
	lost, current := r.deprived(req)
	r.lost(r.store.Extend(r.Context(), lost, r.short()), "while the new owner runs")
	require.Greater(r, r.expect(idem.InProgress, req).Remaining, long/2)
	r.complete(current, text("current"))
	r.lost(r.store.Extend(r.Context(), lost, r.short()), "when the new owner is done")
	r.sleep(r.short() + r.maker.Resolution)
	r.replays("current", req)
}

// extendCompleted is for stores that set the one deadline that they have: a result would be gone with the
// next heartbeat.
func extendCompleted(r *rig) {
	req := r.request("k")
	c := r.done(req, text("done"))
	r.lost(r.store.Extend(r.Context(), c, r.short()), "after Complete")
	r.sleep(r.short() + r.maker.Resolution)
	r.replays("done", req)
}
