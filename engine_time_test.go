package idem_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// tick is the least width of the timing wheel's slots, and each level's are 4 times as wide. The tests
	// know this only to try the lengths at which a wheel that is off by one shows it.
	tick   = time.Duration(1 << 20)
	levels = 20

	// sweepLag is how late the end of a lease may be noticed when nobody asks for the key: the rest of its tick, and
	// the sweeper's pause.
	sweepLag = 2 * tick
)

// gone is how long after its response was recorded nothing of a record is held any more, though nobody asks for it.
func gone(ttl time.Duration) time.Duration { return ttl + ttl/15 + sweepLag }

// century is near the end of what the clock of a bubble has room for.
const century = 100 * 365 * 24 * time.Hour

// edges are the durations up to most around the limits of the wheel's levels.
func edges(most time.Duration) (all []time.Duration) {
	for level := range levels {
		width := tick << (2 * level) // the level below reaches as far as 16 of these
		for _, d := range []time.Duration{1, 2, tick - 1, tick, tick + 1} {
			all = append(all, 16*width-d, 16*width, 16*width+d)
		}
		all = append(all, 17*width-1, 63*width)
	}
	all = append(all, 1, 2, 999, time.Microsecond, 999*time.Microsecond, time.Millisecond, 999*time.Millisecond,
		time.Second, 24*time.Hour, 365*24*time.Hour)
	return slices.DeleteFunc(all, func(d time.Duration) bool { return d <= 0 || d > most })
}

// Each duration is tried with the wheel at rest and at a time that is a multiple of nothing.
func TestTTLIsExact(t *testing.T) {
	for _, offset := range []time.Duration{0, 1, tick - 1, 7*time.Hour + 77*time.Millisecond + 777} {
		t.Run(fmt.Sprintf("from %v on", offset), func(t *testing.T) {
			for _, ttl := range edges(century) {
				bubble(t, idem.Config{Shards: 1}, func(r rig) { expireExactly(r, offset, ttl) })
			}
		})
	}
}

func expireExactly(r rig, offset, ttl time.Duration) {
	r.done("keeps the wheel turning", "", max(offset/2, 1))
	time.Sleep(offset)
	r.done("longer", "", gone(ttl)+time.Hour) // until then the sweeper sleeps, unless it is told
	r.done("k", "b", ttl)
	r.done("left alone", "b", ttl)
	time.Sleep(ttl - 1)
	synctest.Wait()
	r.replays("k", "b")
	r.replays("left alone", "b")
	time.Sleep(1)
	require.Equal(r, idem.Fresh, r.begin(idem.Request{Key: "k", Lease: gone(ttl)}).State, "TTL %d", ttl)
	time.Sleep(gone(ttl) - ttl)
	synctest.Wait()
	require.Equal(r, 2, r.Len(), "TTL %d: the sweeper must reclaim what nobody asks for", ttl)
}

func TestLeaseIsExact(t *testing.T) {
	for _, lease := range edges(century) {
		bubble(t, idem.Config{Shards: 1}, func(r rig) {
			c := r.fresh("k", lease)
			r.fresh("left alone", lease)
			time.Sleep(lease - 1)
			require.Equal(r, idem.Outcome{State: idem.InProgress, Remaining: 1}, r.begin(idem.Request{Key: "k"}))
			time.Sleep(1)
			out := r.begin(idem.Request{Key: "k", Fingerprint: idem.Fingerprint{1}})
			require.Equal(r, idem.Fresh, out.State, "lease %d: free, whatever the fingerprint", lease)
			r.lost(c)
			time.Sleep(sweepLag)
			synctest.Wait()
			require.Equal(r, 1, r.Len(), "lease %d", lease)
		})
	}
	for _, lease := range edges(century / 4) {
		bubble(t, idem.Config{Shards: 1, OnLeaseExpiry: idem.Hold, TTL: 3 * lease}, func(r rig) {
			holdExactly(r, lease)
		})
	}
}

// holdExactly checks the policy Hold: unknown from the end of the lease until a TTL later.
func holdExactly(r rig, lease time.Duration) {
	r.fresh("k", lease)
	time.Sleep(lease - 1)
	require.Equal(r, idem.InProgress, r.state("k"))
	time.Sleep(1)
	require.Equal(r, idem.Outcome{State: idem.Unknown}, r.begin(idem.Request{Key: "k", Wait: true}), "lease %d", lease)
	time.Sleep(2 * lease)
	r.fresh("other", 3*lease)
	time.Sleep(lease - 1)
	require.Equal(r, idem.Unknown, r.state("k"))
	time.Sleep(1)
	require.Equal(r, idem.Fresh, r.state("k"), "lease %d", lease)
}

// Nothing is told of what is over, though it is held until the sweeper comes. Under Hold a record goes from in
// progress to unknown without ever being absent.
func TestAllAtTheDeadline(t *testing.T) {
	for policy, want := range [][]idem.State{idem.TakeOver: nil, idem.Hold: {idem.Unknown}} {
		bubble(t, idem.Config{OnLeaseExpiry: idem.LeasePolicy(policy)}, func(r rig) {
			r.done("done", "b", time.Second)
			r.fresh("claimed", time.Second)
			time.Sleep(time.Second - 1)
			require.Len(r, slices.Collect(r.All()), 2)
			time.Sleep(1)
			var states []idem.State
			for rec := range r.All() {
				states = append(states, rec.State)
			}
			require.Equal(r, want, states)
		})
	}
}

func TestLongestDurations(t *testing.T) {
	for _, offset := range []time.Duration{0, time.Hour} {
		for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - time.Hour} {
			bubble(t, idem.Config{OnLeaseExpiry: idem.Hold, TTL: math.MaxInt64, Lease: math.MaxInt64}, func(r rig) {
				time.Sleep(offset)
				r.done("done", "b", d)
				r.complete(r.fresh("done by default", 0), "b")
				r.fresh("claimed", d)
				r.fresh("unknown", time.Second)
				time.Sleep(2 * century)
				synctest.Wait()
				r.replays("done", "b")
				r.replays("done by default", "b")
				require.Equal(r, idem.InProgress, r.state("claimed"))
				require.Greater(r, r.begin(idem.Request{Key: "claimed"}).Remaining, time.Hour)
				require.Equal(r, idem.Unknown, r.state("unknown"))
			})
		}
	}
}

func TestNegativeDurations(t *testing.T) {
	for _, d := range []time.Duration{-1, -time.Hour, math.MinInt64} {
		r := newRig(t, idem.Config{})
		c := r.fresh("k", 0)
		_, err := r.Begin(t.Context(), idem.Request{Key: "new", Lease: d})
		require.ErrorContains(t, err, "Request.Lease")
		require.ErrorContains(t, r.Complete(t.Context(), c, idem.Response{TTL: d}), "Response.TTL")
		require.ErrorContains(t, r.Resolve(t.Context(), "", "k", idem.Response{TTL: d}), "Response.TTL")
		require.ErrorContains(t, r.Extend(t.Context(), c, d), "lease")
		require.Equal(t, idem.InProgress, r.state("k"), "nothing was changed")
		require.Equal(t, 1, r.Len())
	}
}

func TestDefaults(t *testing.T) {
	bubble(t, idem.Config{TTL: time.Hour, Lease: time.Minute}, func(r rig) {
		require.Equal(r, time.Minute, r.begin(idem.Request{Key: "k"}).Remaining)
		r.done("l", "b", 0)
		time.Sleep(time.Minute)
		require.Equal(r, idem.Fresh, r.state("k"))
		time.Sleep(59*time.Minute - 1)
		r.replays("l", "b")
		time.Sleep(1)
		require.Equal(r, idem.Fresh, r.state("l"))
	})
}

func TestReplaysDoNotExtendTheTTL(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		r.done("k", "b", time.Minute)
		for range 59 {
			time.Sleep(time.Second)
			r.replays("k", "b")
		}
		time.Sleep(time.Second)
		require.Equal(r, idem.Fresh, r.state("k"))
	})
}

// While replays are frequent, a coarse clock serves them, as long as the deadline is over ten seconds off. It
// must not be seen, least of all at the deadline.
func TestDeadlinesAreExactUnderLoad(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 10 * time.Second, 10*time.Second + 5*time.Millisecond, 25*time.Second + 1} {
		t.Run(ttl.String(), func(t *testing.T) {
			bubble(t, idem.Config{Shards: 1}, func(r rig) {
				r.done("others'", "b", time.Hour)
				r.done("k", "b", ttl)
				start := time.Now()
				for _, left := range []time.Duration{24 * time.Second, 10*time.Second + 30*time.Millisecond, 30 * time.Millisecond} {
					time.Sleep(ttl - left - time.Since(start)) // at once when that is over
					r.underLoad("k", min(left, 60*time.Millisecond)-1)
				}
				r.replays("k", "b")
				time.Sleep(1)
				require.Equal(r, ttl, time.Since(start))
				require.Equal(r, idem.Fresh, r.state("k"))
				require.Equal(r, 30*time.Second, r.begin(idem.Request{Key: "k"}).Remaining, "writes use the exact clock")
			})
		})
	}
}

// underLoad replays key and another one so often for d that the coarse clock runs.
func (r rig) underLoad(key string, d time.Duration) {
	r.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 70 {
			r.replays("others'", "b")
		}
		r.replays(key, "b")
		time.Sleep(min(3*time.Millisecond, time.Until(end)))
	}
}

// Keys of which each is used once must not add up, although nobody asks for them again.
func TestMemoryLevelsOff(t *testing.T) {
	bubble(t, idem.Config{Shards: 4}, func(r rig) {
		peak := 0
		for second := range 20 {
			for i := range 500 {
				r.done(fmt.Sprintf("%d/%d", second, i), "body", time.Second)
				time.Sleep(2 * time.Millisecond)
			}
			require.Less(r, r.Len(), 540, "as many as begin within a TTL, and a fifteenth")
			if second == 2 {
				peak = r.Stats().Bytes
			}
		}
		require.LessOrEqual(r, r.Stats().Bytes, 2*peak)
		time.Sleep(gone(time.Second))
		synctest.Wait()
		require.Zero(r, r.Len())
		require.EqualValues(r, 20*500, r.Stats().Expired)
	})
}
