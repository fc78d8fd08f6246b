package idemtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// errLeft is why callers give up.
var errLeft = errors.New("idemtest: the caller left")

// giveUpRows are about callers that stop to wait, are late, or are too many.
func giveUpRows() []Row {
	return []Row{{
		Name: "wait/giving up changes nothing",
		Explanation: "A caller whose context ends stops to wait, with the context's cause, and touches nothing: the " +
			"owner keeps its claim, and the others go on waiting.",
		run: givingUpChangesNothing,
	}, {
		Name: "wait/owner's context means nothing",
		Explanation: "Cancelling the context that the owner began with frees nothing and wakes nobody; only Complete, " +
			"Abandon and the lease's end do.",
		run: ownersContextMeansNothing,
	}, {
		Name: "wait/giving up passes the claim on",
		Explanation: "A claim that is on its way to a caller whose context ends is neither lost nor doubled: that " +
			"caller has it, or the next one who waits.",
		run: givingUpPassesOn,
	}, {
		Name: "wait/no wake-up is lost",
		Explanation: "A caller that begins to wait in the moment in which the owner completes or abandons replays, or " +
			"is the owner; it does not sleep for ever.",
		run: noWakeUpIsLost,
	}, {
		Name: "wait/cap per key",
		Explanation: "Waiters are capped per key. Over the cap the answer is InProgress at once, and other keys have " +
			"room. Who stops to wait makes room.",
		needs:  MaxWaitersPerKey,
		config: Config{MaxWaitersPerKey: 3},
		run:    capPerKey,
	}, {
		Name:        "wait/cap in all",
		Explanation: "Waiters are capped in all. Over the cap the answer is InProgress at once.",
		needs:       MaxWaiters,
		config:      Config{MaxWaiters: 4},
		run:         capInAll,
	}}
}

// givingUpChangesNothing has callers leave by a deadline, and one by being cancelled.
func givingUpChangesNothing(r *rig) {
	req := r.request("k")
	c := r.fresh(req)
	crowd := r.crowd(2, req)
	for range 3 {
		ctx, cancel := context.WithTimeoutCause(r.Context(), r.stretch(calm), errLeft)
		crowd.joinWith(ctx, func(error) { cancel() }, req)
		require.ErrorIs(r, crowd.any().err, errLeft)
		cancel()
		crowd.quiet()
		r.expect(idem.InProgress, req)
	}
	crowd.leave[0](errLeft)
	a := crowd.any()
	require.Equal(r, 0, a.who)
	require.ErrorIs(r, a.err, errLeft)
	require.Equal(r, idem.Outcome{}, a.out)
	crowd.quiet()
	r.complete(c, text("done"))
	crowd.next(idem.Replay)
}

// ownersContextMeansNothing is about clients that hang up while the operation goes on: were the key free
// then, the client's retry would run it again.
func ownersContextMeansNothing(r *rig) {
	ctx, cancel := context.WithCancel(r.Context())
	req := r.request("k")
	out, err := r.store.Begin(ctx, req)
	require.NoError(r, err)
	require.Equal(r, idem.Fresh.String(), out.State.String())
	crowd := r.crowd(3, req)
	cancel()
	crowd.quiet()
	r.expect(idem.InProgress, req)
	r.complete(out.Claim, text("done"))
	crowd.all(3, idem.Replay)
}

// givingUpPassesOn is for stores that hand a claim over in two steps, and lose it between them.
func givingUpPassesOn(r *rig) {
	claims, crowds := make([]idem.Claim, 5*r.rounds()), make([]*crowd, 5*r.rounds())
	for i := range crowds {
		req := r.request(fmt.Sprint(i))
		claims[i] = r.fresh(req)
		crowds[i] = r.newCrowd(2, req)
	}
	r.settle()
	for i, crowd := range crowds {
		// The one right after the other, in both orders, and at the same time.
		switch i % 3 {
		case 0:
			crowd.leave[0](errLeft)
			r.abandon(claims[i])
		case 1:
			r.abandon(claims[i])
			crowd.leave[0](errLeft)
		default:
			var both sync.WaitGroup
			both.Go(func() { crowd.leave[0](errLeft) })
			r.abandon(claims[i])
			both.Wait()
		}
		crowd.oneOfTwo()
	}
}

// oneOfTwo wants that of two callers one gets the claim, though the first may have left.
func (c *crowd) oneOfTwo() {
	c.r.Helper()
	owners := 0
	for range 2 {
		a := c.any()
		switch {
		case a.err != nil:
			require.Equal(c.r, 0, a.who, "the other caller has no reason to fail: %v", a.err)
			require.ErrorIs(c.r, a.err, errLeft)
		case a.out.State == idem.Fresh:
			owners++
			c.r.complete(a.out.Claim, text("done"))
		default:
			require.Equal(c.r, idem.Replay.String(), a.out.State.String())
		}
	}
	require.Equal(c.r, 1, owners, "callers that got the claim")
}

// noWakeUpIsLost is for stores that look and then subscribe: what happens in between wakes nobody.
func noWakeUpIsLost(r *rig) {
	for i := range 10 * r.rounds() {
		req := r.request(fmt.Sprint(i))
		c := r.fresh(req)
		crowd := r.newCrowd(2, req)
		for range i / 2 % 4 {
			runtime.Gosched() // so that they are sometimes before, sometimes after
		}
		want := map[string]int{"replay": 2}
		if i%2 == 0 {
			r.complete(c, text("done"))
		} else {
			r.abandon(c)
			want = map[string]int{"fresh": 1, "replay": 1}
		}
		got := map[string]int{}
		for range 2 {
			a := crowd.any()
			require.NoError(r, a.err)
			got[a.out.State.String()]++
			if a.out.State == idem.Fresh {
				r.complete(a.out.Claim, text("done"))
			}
		}
		require.Equal(r, want, got)
	}
}

// capPerKey is about one key that many duplicates wait for: they hold memory and connections.
func capPerKey(r *rig) {
	req, other := r.request("k"), r.request("other")
	c := r.fresh(req)
	r.fresh(other)
	crowd := r.crowd(8, req)
	waits := make([]bool, 8)
	for i := range waits {
		waits[i] = true
	}
	for range 8 - 3 {
		a := crowd.any()
		require.NoError(r, a.err)
		require.Equal(r, idem.InProgress.String(), a.out.State.String())
		require.Positive(r, a.out.Remaining)
		waits[a.who] = false
	}
	crowd.quiet()
	r.crowd(3, other).quiet()

	// One of those who wait makes room for one more.
	crowd.leave[slices.Index(waits, true)](errLeft)
	require.ErrorIs(r, crowd.any().err, errLeft)
	crowd.join(req)
	crowd.quiet()
	crowd.join(req)
	crowd.next(idem.InProgress)
	r.complete(c, text("done"))
	crowd.all(3, idem.Replay)
}

// capInAll is the same for many keys.
func capInAll(r *rig) {
	crowd := r.newCrowd(0, idem.Request{})
	claims := make([]idem.Claim, 4)
	for i := range claims {
		req := r.request(fmt.Sprint(i))
		claims[i] = r.fresh(req)
		crowd.join(req)
		crowd.join(req)
	}
	crowd.all(2*len(claims)-4, idem.InProgress)
	crowd.quiet()
	for _, c := range claims {
		r.complete(c, text("done"))
	}
	crowd.all(4, idem.Replay)
}
