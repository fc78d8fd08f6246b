package idemtest

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func tokenRows() []Row {
	return []Row{{
		Name: "token/grows with every claim",
		Explanation: "The token grows with every claim of a key: after Abandon, after a TTL, after a lease that ran " +
			"out, and when the claim passes to one who waits.",
		run: tokenGrows,
	}, {
		Name:        "token/grows through forget",
		Explanation: "The token grows through Forget, of a claim and of a done record, though the record is gone.",
		needs:       Inspector,
		run:         tokenGrowsThroughForget,
	}, {
		Name: "token/grows through a restart",
		Explanation: "A store that is opened anew grants higher tokens than before, for whoever fenced with the old " +
			"ones is still there.",
		run: tokenGrowsThroughARestart,
	}, {
		Name:        "token/never used twice",
		Explanation: "A token is granted once, whatever the key, and claims that follow each other have growing tokens.",
		run:         tokenIsNeverUsedTwice,
	}, {
		Name: "token/one that was not granted",
		Explanation: "Extend and Abandon with a token that is not the key's current one, lower or higher, are " +
			"ErrClaimLost, and nothing changes.",
		run: tokenThatWasNotGranted,
	}}
}

// grows wants c to have the highest token so far.
func (r *rig) grows(last *uint64, c idem.Claim, how string) idem.Claim {
	r.Helper()
	require.Greater(r, c.Token, *last, "token %s", how)
	*last = c.Token
	return c
}

// tokenGrows goes through all that frees a key: whatever a store forgets then, it must not forget the
// token.
func tokenGrows(r *rig) {
	var last uint64
	req := r.request("k")
	c := r.grows(&last, r.fresh(req), "of the first claim")
	for range 3 {
		r.abandon(c)
		c = r.grows(&last, r.fresh(req), "after Abandon")
	}
	crowd := r.crowd(1, req)
	r.abandon(c)
	c = r.grows(&last, crowd.next(idem.Fresh).Claim, "of one who waited")
	set := timed(func() { r.complete(c, lasting(text("done"), r.short())) })
	r.sleepPast(set, r.short())
	c = r.grows(&last, r.fresh(req), "after a TTL")
	if r.holds() {
		return
	}
	r.abandon(c)
	r.grows(&last, r.lapsed(req), "after Abandon")
	r.grows(&last, r.lapsed(req), "after a lease")
	r.grows(&last, r.lapsed(req), "after another lease")
}

// tokenGrowsThroughForget is for stores that keep the last token in the record.
func tokenGrowsThroughForget(r *rig) {
	var last uint64
	req := r.request("k")
	for range 3 {
		r.grows(&last, r.fresh(req), "of a claim")
		r.forget(req.Key)
		c := r.grows(&last, r.fresh(foreign(req)), "after Forget of a claim")
		r.complete(c, text("done"))
		r.forget(req.Key)
	}
}

// tokenGrowsThroughARestart is for stores that count from zero.
func tokenGrowsThroughARestart(r *rig) {
	var last uint64
	req := r.request("k")
	for range 3 {
		c := r.grows(&last, r.fresh(req), "of the store as it is now")
		r.abandon(c)
		// Tokens of a store that begins them at the time of day need some to have passed.
		r.sleep(time.Millisecond)
		r.store = r.open()
	}
}

// tokenIsNeverUsedTwice is for stores that count per key or per connection, and for clocks that stand still
// for a while.
func tokenIsNeverUsedTwice(r *rig) {
	var last uint64
	for i := range 10 * r.rounds() {
		r.grows(&last, r.fresh(r.request(fmt.Sprint(i))), "of the next key")
	}
	const callers = 8
	tokens, errs := make([][]uint64, callers), make([]error, callers)
	var done sync.WaitGroup
	for caller := range callers {
		done.Go(func() {
			for i := 0; i < 10*r.rounds() && errs[caller] == nil; i++ {
				var out idem.Outcome
				out, errs[caller] = r.store.Begin(r.Context(), r.request(fmt.Sprint(i, " of ", caller)))
				tokens[caller] = append(tokens[caller], out.Claim.Token)
			}
		})
	}
	done.Wait()
	require.NoError(r, errors.Join(errs...))
	seen := map[uint64]bool{}
	for _, tokens := range tokens {
		for _, token := range tokens {
			require.False(r, seen[token], "token %d was granted twice", token)
			seen[token] = true
		}
	}
}

// tokenThatWasNotGranted is for stores that compare tokens by their order.
func tokenThatWasNotGranted(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	for _, token := range []uint64{c.Token - 1, c.Token + 1, c.Token + 1<<32, math.MaxUint64} {
		forged := c
		forged.Token = token
		r.lost(r.store.Extend(r.Context(), forged, r.short()), "Extend")
		r.lost(r.store.Abandon(r.Context(), forged), "Abandon")
	}
	require.Greater(r, r.expect(idem.InProgress, req).Remaining, long/2)
	r.complete(c, text("done"))
}
