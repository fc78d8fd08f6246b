package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// A waiter is a duplicate that waits for the key "k" in a bubble.
type waiter struct {
	cancel context.CancelCauseFunc
	out    idem.Outcome
	err    error
	at     time.Time // when it was answered; zero until then
}

// wait starts a waiter, and returns when it waits.
func (r rig) wait(lease time.Duration) *waiter {
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &waiter{cancel: cancel}
	go func() {
		w.out, w.err = r.Begin(ctx, idem.Request{Key: "k", Wait: true, Lease: lease})
		w.at = time.Now()
	}()
	synctest.Wait()
	return w
}

func (r rig) waits(n int) (all []*waiter) {
	r.Helper()
	before := r.Stats().Waiting
	for range n {
		all = append(all, r.wait(0))
	}
	require.Equal(r, before+n, r.Stats().Waiting)
	return all
}

// answered lets everybody go on, and returns those who have an answer now and those who go on waiting.
func answered(all []*waiter) (some, rest []*waiter) {
	synctest.Wait()
	for _, w := range all {
		if w.at.IsZero() {
			rest = append(rest, w)
		} else {
			some = append(some, w)
		}
	}
	return some, rest
}

// promoted checks that the first of all is the new owner and the others go on waiting. It returns its claim
// and them.
func (r rig) promoted(all []*waiter) (idem.Claim, []*waiter) {
	r.Helper()
	some, rest := answered(all)
	require.Len(r, some, 1, "exactly one wakes")
	require.Same(r, all[0], some[0], "first come, first served")
	require.NoError(r, some[0].err)
	require.Equal(r, idem.Fresh, some[0].out.State)
	require.Equal(r, len(rest), r.Stats().Waiting)
	return some[0].out.Claim, rest
}

// allHave checks that nobody waits any more, and what each was answered.
func (r rig) allHave(all []*waiter, state idem.State, body string) {
	r.Helper()
	some, rest := answered(all)
	require.Empty(r, rest, "all wake")
	for _, w := range some {
		require.NoError(r, w.err)
		require.Equal(r, state, w.out.State)
		require.Equal(r, body, string(w.out.Response.Body))
	}
	require.Zero(r, r.Stats().Waiting)
}

func TestWaitersReplayWhatIsRecorded(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		c := r.fresh("k", 0)
		all := r.waits(50)
		time.Sleep(29 * time.Second)
		r.complete(c, "b")
		r.allHave(all, idem.Replay, "b")
		st := r.Stats()
		require.Equal(r, []uint64{50, 50, 1}, []uint64{st.Waited, st.Replayed, st.Fresh})
	})
	bubble(t, idem.Config{}, func(r rig) {
		c := r.fresh("k", 0)
		all := r.waits(5)
		require.NoError(r, r.Resolve(r.Context(), "", "k", idem.Response{Body: []byte("found out")}))
		r.allHave(all, idem.Replay, "found out")
		r.lost(c)
	})
}

// An owner may lose its claim in many ways. Each time the next in line gets it, and at once.
func TestClaimIsHandedOver(t *testing.T) {
	const lease = 30 * time.Second
	for name, lose := range map[string]func(r rig, c idem.Claim){
		"abandoned":           func(r rig, c idem.Claim) { require.NoError(r, r.Abandon(r.Context(), c)) },
		"forgotten":           func(r rig, _ idem.Claim) { r.forget("k", true) },
		"asked for when over": func(r rig, _ idem.Claim) { time.Sleep(lease); require.Equal(r, idem.InProgress, r.state("k")) },
		"looked at when over": func(r rig, _ idem.Claim) { time.Sleep(lease); _, _, _ = r.Lookup(r.Context(), "", "k") },
		"over":                func(_ rig, _ idem.Claim) { time.Sleep(lease + sweepLag) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, idem.Config{Lease: lease}, func(r rig) {
				c := r.fresh("k", 0)
				for all := r.waits(5); len(all) > 0; {
					lose(r, c)
					next, rest := r.promoted(all)
					require.Greater(r, next.Token, c.Token)
					r.lost(c)
					c, all = next, rest
				}
				require.EqualValues(r, 5, r.Stats().HandedOver)
				r.complete(c, "b")
				r.replays("k", "b")
			})
		})
	}
}

// A claim can be taken from a new owner before that has noticed that it is one. Whoever is granted the claim
// next must come to know it: without anybody behind it in line, that is the same caller.
func TestForgetWhileTheClaimIsHandedOver(t *testing.T) {
	forgetTwice := func(r rig) { r.forget("k", true); _, _ = r.Forget(r.Context(), "", "k") }
	for name, lose := range map[string]func(r rig){
		"forgotten twice":     forgetTwice,
		"forgotten when over": func(r rig) { time.Sleep(30 * time.Second); r.forget("k", true) },
	} {
		for _, n := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s, %d waiting", name, n), func(t *testing.T) {
				for range 50 { // whether the first of them notices in time is chance
					bubble(t, idem.Config{Shards: 1}, func(r rig) {
						r.fresh("k", 0)
						all := r.waits(n)
						lose(r)
						some, rest := answered(all)
						require.LessOrEqual(r, len(some), 2)
						require.Equal(r, len(rest), r.Stats().Waiting)
						rec, found, err := r.Lookup(r.Context(), "", "k")
						require.NoError(r, err)
						require.Equal(r, found, slices.ContainsFunc(some, func(w *waiter) bool {
							return w.out.Claim.Token == rec.Token
						}), "the owner knows")
					})
				}
			})
		}
	}
}

func TestWaitersUnderHold(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		c := r.fresh("k", time.Second)
		all := r.waits(10)
		time.Sleep(time.Second + sweepLag)
		r.allHave(all, idem.Unknown, "")
		r.complete(c, "b")
		r.replays("k", "b")
	})
}

// Nobody polls: the sweeper promotes one when the lease ends, and the others do not even wake.
func TestLeaseEndPromotesOne(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		r.fresh("k", time.Second)
		start := time.Now()
		all := []*waiter{r.wait(time.Hour)}
		all = append(all, r.waits(9)...)
		time.Sleep(time.Second + sweepLag)
		c, rest := r.promoted(all)
		require.Len(r, rest, 9)
		require.GreaterOrEqual(r, all[0].at.Sub(start), time.Second, "never early")
		require.Equal(r, time.Hour, all[0].out.Remaining, "it has the lease that it asked for")
		require.Equal(r, c.Token, all[0].out.Claim.Token)

		time.Sleep(time.Hour - sweepLag)
		require.NoError(r, r.Extend(r.Context(), c, time.Hour))
		time.Sleep(time.Hour - sweepLag)
		_, rest = answered(rest)
		require.Len(r, rest, 9, "an extended lease goes on")
		r.complete(c, "b")
		r.allHave(rest, idem.Replay, "b")
	})
}

func TestWaiterGivesUp(t *testing.T) {
	left := errors.New("left")
	bubble(t, idem.Config{}, func(r rig) {
		c := r.fresh("k", 0)
		all := r.waits(3)
		time.Sleep(time.Second)
		all[1].cancel(left)
		some, rest := answered(all)
		require.Equal(r, all[1:2], some)
		require.Equal(r, left, some[0].err)
		require.Zero(r, some[0].out)
		require.Equal(r, 2, r.Stats().Waiting)
		require.Equal(r, idem.InProgress, r.state("k"), "the owner's record is as it was")
		require.Equal(r, 29*time.Second, r.begin(idem.Request{Key: "k"}).Remaining)

		all[0].cancel(left)
		all[2].cancel(left)
		_, rest = answered(rest)
		require.Empty(r, rest)
		require.Zero(r, r.Stats().Waiting)
		require.NoError(r, r.Extend(r.Context(), c, time.Minute))
		r.complete(c, "b")
		r.replays("k", "b")
	})
	bubble(t, idem.Config{}, func(r rig) { // a deadline instead
		r.fresh("k", time.Hour)
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := r.Begin(ctx, idem.Request{Key: "k", Wait: true})
		require.Equal(r, context.DeadlineExceeded, err)
		require.Equal(r, 10*time.Millisecond, time.Since(start))
	})
}

func TestOwnersContextMeansNothing(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		ctx, cancel := context.WithCancel(r.Context())
		out, err := r.Begin(ctx, idem.Request{Key: "k"})
		require.NoError(r, err)
		all := r.waits(10)
		cancel()
		some, _ := answered(all)
		require.Empty(r, some)
		later := r.waits(1) // one who joins after that is no worse off
		r.complete(out.Claim, "b")
		r.allHave(append(all, later...), idem.Replay, "b")
	})
}

func TestWaitingIsOnlyForAnOwner(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		wait := idem.Request{Key: "k", Wait: true}
		first := r.begin(wait)
		require.Equal(r, idem.Fresh, first.State)
		require.Equal(r, idem.Mismatch, r.begin(idem.Request{Key: "k", Wait: true, Fingerprint: idem.Fingerprint{1}}).State)
		time.Sleep(30 * time.Second)
		require.Equal(r, idem.Unknown, r.begin(wait).State)
		r.complete(first.Claim, "b")
		require.Equal(r, idem.Replay, r.begin(wait).State)
		require.Zero(r, r.Stats().Waited)
	})
}

func TestWaitersAreCapped(t *testing.T) {
	bubble(t, idem.Config{MaxWaitersPerKey: 4, MaxWaiters: 6}, func(r rig) {
		over := func(key string) {
			out := r.begin(idem.Request{Key: key, Wait: true})
			require.Equal(r, idem.InProgress, out.State)
			require.Equal(r, 30*time.Second, out.Remaining)
		}
		r.fresh("k", 0)
		all := r.waits(4)
		over("k")
		r.fresh("l", 0)
		for range 2 {
			go func() { _, _ = r.Begin(r.Context(), idem.Request{Key: "l", Wait: true}) }()
		}
		synctest.Wait()
		over("l")
		require.Equal(r, 6, r.Stats().Waiting)

		all[3].cancel(nil)
		synctest.Wait()
		r.wait(0) // whoever leaves makes room
		over("k")
		require.Equal(r, 6, r.Stats().Waiting)
		require.EqualValues(r, 7, r.Stats().Waited)
		require.EqualValues(r, 3, r.Stats().Duplicates, "those over a cap have their answer at once")
	})
}
