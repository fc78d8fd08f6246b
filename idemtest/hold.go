package idemtest

import (
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// holdRows are about outcomes that are unknown, which only the policy Hold knows.
func holdRows() []Row {
	return []Row{{
		Name: "hold/unknown",
		Explanation: "Under Hold a key whose lease has run out is Unknown, to everybody who asks, and nobody runs the " +
			"operation again. Who asks with Wait is told so at once. The fingerprint is still compared first.",
		needs: Hold,
		run:   unknown,
	}, {
		Name:        "hold/waiters are told",
		Explanation: "When the lease of an owner under Hold runs out, all who wait wake and find the outcome unknown.",
		needs:       Hold,
		run:         waitersAreTold,
	}, {
		Name: "hold/owner ends it",
		Explanation: "A late Complete or Extend by the current token ends Unknown. So does Abandon: the owner knows " +
			"best that nothing happened.",
		needs: Hold,
		run:   ownerEndsUnknown,
	}, {
		Name: "hold/operator ends it",
		Explanation: "Unknown lasts until Resolve, which records a result, or Forget, which frees the key. The owner " +
			"that comes back then finds its claim lost.",
		needs: Hold | Inspector,
		run:   operatorEndsUnknown,
	}, {
		Name: "hold/lookup",
		Explanation: "Lookup of a key that is Unknown tells whose claim it was, when it was granted, and what is left of " +
			"the record's life.",
		needs: Hold | Inspector,
		run:   lookupUnknown,
	}, {
		Name: "hold/ttl ends it",
		Explanation: "Unknown lasts for the store's TTL, and at most for the lease and the TTL together. The key is " +
			"free then.",
		needs:  Hold | DefaultTTL,
		config: Config{TTL: 4 * short},
		run:    ttlEndsUnknown,
	}}
}

// unknown is about effects that must never run twice: nothing that a client does may make the key free.
func unknown(r *rig) {
	req := r.request("k")
	r.lapsed(req)
	for _, req := range []idem.Request{req, waiting(req), req} {
		require.Equal(r, idem.Outcome{State: idem.Unknown}, r.expect(idem.Unknown, req))
		r.mismatches(req)
	}
	if r.inspects() {
		rec, found, err := r.inspector().Lookup(r.Context(), req.Scope, req.Key)
		require.NoError(r, err)
		require.True(r, found)
		require.Equal(r, idem.Unknown.String(), rec.State.String())
		require.Positive(r, rec.Remaining, "what is left of the record's life")
	}
}

// waitersAreTold is for stores that know of only two ways to wake: by a result or by a claim.
func waitersAreTold(r *rig) {
	req := r.request("k")
	r.fresh(r.brief(req))
	crowd := r.crowd(5, req)
	for range 5 {
		crowd.next(idem.Unknown)
	}
}

// ownerEndsUnknown is about an owner that was slow, not dead. It knows what happened.
func ownerEndsUnknown(r *rig) {
	req := r.request("complete")
	r.complete(r.lapsed(req), text("done"))
	r.replays("done", req)

	req = r.request("extend")
	c := r.lapsed(req)
	r.expect(idem.Unknown, req)
	r.extend(c, long)
	r.runsLong(req)
	crowd := r.crowd(1, req)
	r.complete(c, text("done"))
	crowd.next(idem.Replay)

	req = r.request("abandon")
	c = r.lapsed(req)
	r.expect(idem.Unknown, req)
	r.abandon(c)
	r.expect(idem.Fresh, req)
}

// operatorEndsUnknown is about people who looked what happened. They must have the last word.
func operatorEndsUnknown(r *rig) {
	req := r.request("resolve")
	c := r.lapsed(req)
	require.NoError(r, r.inspector().Resolve(r.Context(), req.Scope, req.Key, text("resolved")))
	r.replays("resolved", req)
	r.lost(r.store.Complete(r.Context(), c, text("late")), "Complete after Resolve")
	r.replays("resolved", req)

	req = r.request("forget")
	r.lapsed(req)
	r.forget(req.Key)
	r.expect(idem.Fresh, foreign(req))
}

// lookupUnknown is about what an operator has to go by.
func lookupUnknown(r *rig) {
	req := r.request("k")
	var c idem.Claim
	granted := timed(func() { c = r.fresh(r.brief(req)) })
	since := r.find(req).Since
	r.sleepPast(granted, r.short())
	for range 2 {
		rec := r.find(req)
		require.Equal(r, idem.Unknown.String(), rec.State.String())
		require.Equal(r, c.Token, rec.Token)
		require.True(r, since.Equal(rec.Since), "Since is when the claim was granted")
		require.Positive(r, rec.Remaining)
		require.Zero(r, rec.Response)
	}
}

// ttlEndsUnknown looks again and again, for looking must not make the key unknown anew.
func ttlEndsUnknown(r *rig) {
	req, ttl := r.request("k"), 4*r.short()
	granted := timed(func() { r.fresh(r.brief(req)) })
	r.sleepPast(granted, r.short())
	// Looking in between must not start the TTL anew.
	for state := idem.Unknown; state != idem.Fresh; r.sleep(ttl / 10) {
		asked := timed(func() { state = r.begin(req).State })
		if state == idem.Fresh {
			require.False(r, asked.to.Before(granted.from.Add(ttl-r.maker.Resolution)), "the TTL ended too early")
			break
		}
		r.judge(granted, r.short()+ttl, asked, state, idem.Unknown, idem.Fresh)
	}
}
