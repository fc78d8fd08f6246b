package idemtest

import (
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func leaseRows() []Row {
	return []Row{{
		Name: "lease/exact",
		Explanation: "A claim lasts as long as its lease, exactly: in progress until then, and then free for anyone " +
			"(TakeOver) or unknown (Hold).",
		run: leaseIsExact,
	}, {
		Name: "lease/any fingerprint takes over",
		Explanation: "Under TakeOver a key whose lease has run out is as free as an absent one, whatever the " +
			"fingerprint.",
		needs: TakeOver,
		run:   anyFingerprintTakesOver,
	}, {
		Name:        "lease/zero is the default",
		Explanation: "A request with lease zero gets the store's default, and so does Extend.",
		needs:       DefaultLease,
		config:      Config{Lease: 2 * short},
		run:         zeroLease,
	}, {
		Name: "lease/tiny is not for ever",
		Explanation: "A lease below the resolution of the store's clock is rounded up to it. It is no error, and it " +
			"does not mean for ever.",
		run: tinyLease,
	}, {
		Name: "lease/huge saturates",
		Explanation: "A lease that ends beyond what the store can express lasts as long as it can; it does not overflow " +
			"into the past.",
		run: hugeLease,
	}, {
		Name: "lease/negative is an error",
		Explanation: "Begin with a negative lease is an error and claims nothing; Extend with one is an error and " +
			"changes nothing.",
		run: negativeLease,
	}}
}

// leaseIsExact is for stores that cut deadlines off at whole seconds, and so end a lease of one second at
// once.
func leaseIsExact(r *rig) {
	r.runsOut("Begin", 4*r.short(), func(req idem.Request) {
		req.Lease = 4 * r.short()
		r.fresh(req)
	}, idem.InProgress, r.afterLease())
}

// anyFingerprintTakesOver is for stores that leave the dead owner's record in place: its fingerprint would
// lock the key until the TTL.
func anyFingerprintTakesOver(r *rig) {
	for _, wait := range []bool{false, true} {
		req := r.request(map[bool]string{true: "waiting", false: "not waiting"}[wait])
		r.lapsed(req)
		other := foreign(req)
		other.Wait = wait
		c := r.fresh(other)
		require.Equal(r, other.Fingerprint, c.Fingerprint)
		r.complete(c, text("theirs"))
		r.replays("theirs", other)
		r.expect(idem.Mismatch, req)
	}
}

// zeroLease looks at all ways to a default. A store for which zero is for ever leaves keys stuck.
func zeroLease(r *rig) {
	lease := 2 * r.short()
	r.runsOut("Begin", lease, func(req idem.Request) {
		req.Lease = 0
		out := r.expect(idem.Fresh, req)
		require.LessOrEqual(r, out.Remaining, r.most(lease))
		require.GreaterOrEqual(r, out.Remaining, lease-r.maker.Resolution)
	}, idem.InProgress, r.afterLease())
	r.runsOut("Extend", lease, func(req idem.Request) { r.extend(r.fresh(req), 0) }, idem.InProgress, r.afterLease())
	r.runsOut("Begin with Wait", lease, func(req idem.Request) {
		c := r.fresh(req)
		req.Lease = 0
		crowd := r.crowd(1, req)
		r.abandon(c)
		crowd.next(idem.Fresh)
	}, idem.InProgress, r.afterLease())
}

// tinyLease is for stores for which a lease that rounds to zero is none at all.
func tinyLease(r *rig) {
	for _, lease := range tiny() {
		req := r.request(lease.String())
		req.Lease = lease
		var c idem.Claim
		granted := timed(func() { c = r.fresh(req) })
		r.sleepPast(granted, lease)
		// A lease that is over does not make the claim any less the current one.
		r.complete(c, text("done"))
		r.replays("done", req)

		req.Key += " dead"
		granted = timed(func() { r.fresh(req) })
		r.sleepPast(granted, lease)
		r.expect(r.afterLease(), req)
	}
}

// hugeLease is for stores that add a lease to the time of day, and land in the past.
func hugeLease(r *rig) {
	for _, lease := range huge() {
		req := r.request(lease.String())
		req.Lease = lease
		require.Positive(r, r.expect(idem.Fresh, req).Remaining)
		extended := r.request(lease.String() + " by Extend")
		r.extend(r.fresh(extended), lease)
		r.settle()
		for _, req := range []idem.Request{req, extended} {
			left := r.expect(idem.InProgress, req).Remaining
			require.Greater(r, left, min(lease, year)-long)
			require.LessOrEqual(r, left, lease)
		}
	}
}

// negativeLease is for stores that take less than nothing for nothing, and thus for the default or for
// ever.
func negativeLease(r *rig) {
	for _, lease := range negative() {
		req := r.request(lease.String())
		bad := req
		bad.Lease = lease
		for _, bad := range []idem.Request{bad, waiting(bad)} {
			_, err := r.store.Begin(r.Context(), bad)
			require.Error(r, err)
		}
		c := r.fresh(foreign(req))
		require.Error(r, r.store.Extend(r.Context(), c, lease))
		r.expect(idem.InProgress, foreign(req))
		r.complete(c, text("done"))
	}
}
