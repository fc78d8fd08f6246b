package idemtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// lifeRows are about how long a done record lives.
func lifeRows() []Row {
	return []Row{{
		Name: "ttl/exact",
		Explanation: "A done record is replayed until its TTL ends, exactly. Before the deadline it is there, at the " +
			"deadline it is absent.",
		run: func(r *rig) {
			r.runsOut("Complete", 4*r.short(), func(req idem.Request) {
				r.done(req, lasting(text("done"), 4*r.short()))
			}, idem.Replay, idem.Fresh)
		},
	}, {
		Name: "ttl/replays do not extend it",
		Explanation: "Replays never extend the TTL, nor do mismatches and looks: a record dies at the time that " +
			"Complete set, however much it is asked for.",
		run: replaysDoNotExtend,
	}, {
		Name:        "ttl/zero is the default",
		Explanation: "A response with TTL zero lives as long as the store's default says.",
		needs:       DefaultTTL,
		config:      Config{TTL: 2 * short},
		run: func(r *rig) {
			r.runsOut("Complete", 2*r.short(), func(req idem.Request) { r.done(req, text("done")) }, idem.Replay, idem.Fresh)
		},
	}, {
		Name: "ttl/replaces the lease",
		Explanation: "Once the operation is done its lease means nothing: a longer TTL is not cut short by it, a " +
			"shorter one not stretched.",
		run: ttlReplacesTheLease,
	}, {
		Name: "ttl/after its end",
		Explanation: "After the TTL a key is as good as new: Fresh for any fingerprint, and nothing of the old response " +
			"is left.",
		run: afterTheTTL,
	}, {
		Name: "ttl/churn",
		Explanation: "While records expire and are reclaimed, other callers find only right answers, and no key is left " +
			"unclaimable.",
		run: churn,
	}}
}

// ttlRows are about TTLs, and operations, that are out of the ordinary.
func ttlRows() []Row {
	return []Row{{
		Name: "ttl/tiny is not for ever",
		Explanation: "A TTL below the resolution of the store's clock is rounded up to it. It is no error, and it does " +
			"not mean for ever.",
		run: tinyTTL,
	}, {
		Name: "ttl/huge saturates",
		Explanation: "A TTL that ends beyond what the store can express lasts as long as it can; it does not overflow " +
			"into the past.",
		run: hugeTTL,
	}, {
		Name:        "ttl/negative is an error",
		Explanation: "Complete with a negative TTL is an error and changes nothing: the claim can still be completed.",
		run:         negativeTTL,
	}, {
		Name:        "ttl/counts from Complete",
		Explanation: "A TTL counts from Complete, however long the operation took before.",
		run:         ttlCountsFromComplete,
	}}
}

// replaysDoNotExtend is for stores that are caches by nature, in which what is asked for lives on: a key
// that a client asks for every minute would never be free.
func replaysDoNotExtend(r *rig) {
	req, ttl := r.request("k"), 3*r.short()
	c := r.fresh(req)
	set := timed(func() { r.complete(c, lasting(text("done"), ttl)) })
	for {
		if r.begin(foreign(req)).State == idem.Fresh {
			return
		}
		if r.inspects() {
			_, _, err := r.inspector().Lookup(r.Context(), req.Scope, req.Key)
			require.NoError(r, err)
		}
		var out idem.Outcome
		asked := timed(func() { out = r.begin(waiting(req)) })
		r.judge(set, ttl, asked, out.State, idem.Replay, idem.Fresh)
		if out.State == idem.Fresh {
			return
		}
		r.sleep(ttl / 20)
	}
}

// ttlCountsFromComplete is for stores that set a record's end when the key is claimed.
func ttlCountsFromComplete(r *rig) {
	req, ttl := r.request("k"), 4*r.short()
	c := r.fresh(req)
	r.sleep(ttl)
	set := timed(func() { r.complete(c, lasting(text("done"), ttl)) })
	r.sleep(r.short())
	var out idem.Outcome
	asked := timed(func() { out = r.begin(req) })
	r.judge(set, ttl, asked, out.State, idem.Replay, idem.Fresh)
	r.sleepPast(set, ttl)
	if out.State == idem.Replay {
		r.expect(idem.Fresh, req)
	}
}

// tinyTTL is for stores that count in whole seconds or milliseconds, and for which zero is for ever or an
// error.
func tinyTTL(r *rig) {
	for _, ttl := range tiny() {
		req := r.request(ttl.String())
		c := r.fresh(req)
		set := timed(func() { r.complete(c, lasting(text("done"), ttl)) })
		r.sleepPast(set, ttl)
		r.expect(idem.Fresh, req)
	}
}

// hugeTTL is for stores that add a TTL to the time of day, and land in the past.
func hugeTTL(r *rig) {
	for _, ttl := range huge() {
		req := r.request(ttl.String())
		r.done(req, lasting(text("done"), ttl))
		r.settle()
		r.replays("done", req)
		if r.inspects() {
			rec, found, err := r.inspector().Lookup(r.Context(), req.Scope, req.Key)
			require.NoError(r, err)
			require.True(r, found)
			require.Greater(r, rec.Remaining, min(ttl, year)-long)
			require.LessOrEqual(r, rec.Remaining, ttl)
		}
	}
}

// negativeTTL is about a mistake that must not cost the operation its result.
func negativeTTL(r *rig) {
	for _, ttl := range negative() {
		req := r.request(ttl.String())
		c := r.fresh(req)
		require.Error(r, r.store.Complete(r.Context(), c, lasting(text("no"), ttl)))
		r.expect(idem.InProgress, req)
		r.complete(c, text("done"))
		r.replays("done", req)
	}
}

// ttlReplacesTheLease is for stores that keep one deadline for both, and a timer for the old one.
func ttlReplacesTheLease(r *rig) {
	longer, shorter := r.request("longer"), r.request("shorter")
	granted := timed(func() { r.done(r.brief(longer), lasting(text("done"), long)) })
	c := r.fresh(shorter)
	set := timed(func() { r.complete(c, lasting(text("done"), r.short())) })
	r.sleepPast(granted, 2*r.short()) // a timer of the lease may fire a little late
	r.replays("done", longer)
	r.sleepPast(set, r.short())
	r.expect(idem.Fresh, shorter)
}

// afterTheTTL is for stores that write a new claim over an old record, field by field.
func afterTheTTL(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	old := idem.Response{Status: 500, Header: []byte("old"), Body: []byte("old"), Failed: true, Truncated: true}
	set := timed(func() { r.complete(c, lasting(old, r.short())) })
	r.sleepPast(set, r.short())
	out := r.expect(idem.Fresh, foreign(req))
	require.Zero(r, out.Response)
	r.complete(out.Claim, idem.Response{})
	r.same(idem.Response{}, r.expect(idem.Replay, foreign(req)).Response, "the new record")
}

// churn is for stores whose sweeper deletes between another caller's look and its next step, or takes a
// live claim for a dead record.
func churn(r *rig) {
	const callers, keys = 8, 4
	requests := make([]idem.Request, keys)
	for i := range requests {
		requests[i] = r.request(fmt.Sprint(i))
	}
	errs := make([]error, callers)
	var done sync.WaitGroup
	for caller := range callers {
		done.Go(func() {
			for i := 0; i < 20*r.rounds() && errs[caller] == nil; i++ {
				errs[caller] = r.claimBriefly(requests[(i+caller)%keys])
			}
		})
	}
	done.Wait()
	for _, err := range errs {
		require.NoError(r, err)
	}
	for _, req := range requests {
		r.eventually(func() bool { return r.begin(req).State == idem.Fresh }, "Fresh after the churn")
	}
}

// claimBriefly begins req and, when it is Fresh, completes it for a millisecond.
func (r *rig) claimBriefly(req idem.Request) error {
	out, err := r.store.Begin(r.Context(), req)
	if err != nil {
		return err
	}
	switch out.State {
	case idem.Fresh:
		return r.store.Complete(r.Context(), out.Claim, lasting(text("done"), time.Millisecond))
	case idem.InProgress:
		return nil
	case idem.Replay:
		r.sleep(time.Millisecond) // time must pass in a bubble, too
		return nil
	default:
		return fmt.Errorf("state of a key with one fingerprint: %v", out.State)
	}
}
