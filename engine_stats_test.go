package idem_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// Every claim that was granted is either held still or was counted when it went.
func TestStatsAddUp(t *testing.T) {
	for seed := range uint64(8) {
		bubble(t, idem.Config{Shards: 4, TTL: time.Minute}, func(r rig) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			want := map[idem.State]uint64{}
			var claims []idem.Claim
			for range 3000 {
				key := fmt.Sprint(rnd.IntN(100))
				switch rnd.IntN(8) {
				case 0, 1, 2, 3:
					out := r.begin(idem.Request{
						Key: key, Fingerprint: idem.Fingerprint{byte(rnd.IntN(8) / 7)},
						Lease: time.Duration(rnd.IntN(100)+1) * time.Second,
					})
					want[out.State]++
					if out.State == idem.Fresh {
						claims = append(claims, out.Claim)
					}
				case 4:
					_, _ = r.Forget(r.Context(), "", key)
				case 5:
					_ = r.Resolve(r.Context(), "", key, idem.Response{})
				case 6:
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				default:
					if len(claims) > 0 {
						finish(r, rnd, claims[rnd.IntN(len(claims))])
					}
				}
			}
			synctest.Wait()
			addUp(r, want)
			time.Sleep(time.Hour)
			synctest.Wait()
			addUp(r, want)
			require.Zero(r, r.Len())
		})
	}
}

func finish(r rig, rnd *rand.Rand, c idem.Claim) {
	switch rnd.IntN(4) {
	case 0:
		_ = r.Abandon(r.Context(), c)
	case 1:
		_ = r.Extend(r.Context(), c, 0)
	default:
		_ = r.Complete(r.Context(), c, idem.Response{Body: make([]byte, rnd.IntN(500))})
	}
}

func addUp(r rig, want map[idem.State]uint64) {
	r.Helper()
	st := r.Stats()
	require.Equal(r, st.Fresh+st.Restored,
		uint64(st.Records)+st.Expired+st.LeasesExpired+st.Abandoned+st.Forgotten, "%+v", st)
	require.Equal(r, want, map[idem.State]uint64{
		idem.Fresh: st.Fresh, idem.Replay: st.Replayed, idem.InProgress: st.Duplicates, idem.Mismatch: st.Mismatched,
	})
	require.Equal(r, st.Records, r.Len())
	records, bytes, inProgress := 0, 0, 0
	for _, s := range st.Shards {
		records += s.Records
		bytes += s.Bytes
	}
	for rec := range r.All() {
		if rec.State == idem.InProgress {
			inProgress++
		}
	}
	require.Equal(r, []int{records, bytes}, []int{st.Records, st.Bytes})
	require.GreaterOrEqual(r, st.InProgress, inProgress, "some leases may be over and not reclaimed yet")
}

// What has just run out is not counted as held for longer than the sweeper needs.
func TestStatsAtTheDeadline(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		r.done("k", "b", time.Second)
		r.fresh("l", time.Second)
		require.Equal(r, 1, r.Stats().InProgress)
		time.Sleep(gone(time.Second))
		synctest.Wait()
		st := r.Stats()
		require.Equal(r, []int{0, 0}, []int{st.Records, st.InProgress})
		require.Equal(r, []uint64{1, 1}, []uint64{st.Expired, st.LeasesExpired})
	})
	bubble(t, idem.Config{}, func(r rig) { // before the sweeper comes
		r.done("k", "b", time.Second)
		r.fresh("l", time.Second)
		r.fresh("m", time.Second)
		time.Sleep(time.Second)
		r.fresh("k", 0)
		r.fresh("l", 0)
		r.forget("m", false)
		st := r.Stats()
		require.Equal(r, []uint64{5, 1, 2}, []uint64{st.Fresh, st.Expired, st.LeasesExpired})
		require.Equal(r, []int{2, 2}, []int{st.Records, st.InProgress})
	})
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		r.fresh("l", time.Second)
		time.Sleep(time.Second + sweepLag)
		synctest.Wait()
		require.Equal(r, idem.Unknown, r.state("l"))
		st := r.Stats()
		require.Equal(r, []int{1, 0}, []int{st.Records, st.InProgress})
		require.Equal(r, []uint64{0, 1, 1}, []uint64{st.Expired, st.LeasesExpired, st.Unknown})
	})
}

// Replays that take no lock are counted too, each of them.
func TestEveryReplayIsCounted(t *testing.T) {
	r := newRig(t, idem.Config{Shards: 1})
	r.done("k", "b", time.Hour)
	var callers sync.WaitGroup
	var replays atomic.Uint64
	for range 8 {
		callers.Go(func() {
			for range 5000 {
				if out, err := r.Begin(t.Context(), idem.Request{Key: "k"}); err == nil && out.State == idem.Replay {
					replays.Add(1)
				}
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, 8*5000, replays.Load())
	require.EqualValues(t, 8*5000, r.Stats().Replayed)
}

// A lease that runs out is counted also when the claim passes to a waiter.
func TestLapseBeforeAWaiterIsCounted(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		r.fresh("k", time.Second)
		all := r.waits(1)
		time.Sleep(time.Second + sweepLag)
		c, _ := r.promoted(all)
		st := r.Stats()
		require.Equal(r, []uint64{1, 1}, []uint64{st.LeasesExpired, st.HandedOver})
		r.complete(c, "b")
	})
}
