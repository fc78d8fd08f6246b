package idem

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// How late a response is reclaimed depends on its own TTL, and not on how long nothing was due before.
func TestReclaimedInTimeAfterAQuietTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1})
		keep(t, e, "stays", "b", 10_000*time.Hour)
		time.Sleep(1000 * time.Hour)
		keep(t, e, "goes", "b", time.Minute)
		time.Sleep(time.Minute + time.Minute/maxLag + 3*sweepPause)
		synctest.Wait()
		require.Equal(t, 1, e.Len())
		checkInvariants(t, e)
	})
}

// The sweeper may come to a shard with a time that is over by then: a Begin came later and was first.
func TestSweepBehindABegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1})
		e.sweeper.once.Do(func() { close(e.sweeper.ended) }) // it will never start
		for i := range 10 * helpSlice {
			keep(t, e, fmt.Sprint(i), "b", time.Hour)
		}
		before := e.clock.now()
		time.Sleep(2 * time.Hour)
		keep(t, e, "new", "b", time.Hour) // reclaims some of those that are due
		e.shards[0].expire(before, 1000)
		checkInvariants(t, e)
	})
}

// A deadline that comes up in a shard which the sweeper's round has passed already wakes it again.
func TestDeadlineBehindTheSweeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 2})
		first, second := &e.shards[0], &e.shards[1]
		begin := func(s *shard) {
			i := 0
			for e.shardOf("", fmt.Sprint(i)) != s {
				i++
			}
			out, err := e.Begin(t.Context(), Request{Key: fmt.Sprint(i), Lease: time.Second})
			require.NoError(t, err)
			require.Equal(t, Fresh, out.State)
		}
		begin(second)
		for second.due.Load() < int64(time.Second) { // until the sweeper sleeps up to the deadline itself
			time.Sleep(sweepPause)
		}
		second.mu.Lock()
		time.Sleep(time.Duration(second.due.Load() - e.clock.now()))
		for range 10_000 {
			runtime.Gosched() // the sweeper comes as far as the lock
		}
		begin(first)
		second.mu.Unlock()
		time.Sleep(time.Second + 3*sweepPause)
		synctest.Wait()
		require.Zero(t, e.Len())
	})
}

// When Close has returned the engine's goroutine has ended: not soon, but by then.
func TestCloseWaitsForTheSweeper(t *testing.T) {
	for range 100 {
		e, err := New(Config{Shards: 1})
		require.NoError(t, err)
		keep(t, e, "k", "b", time.Hour) // starts it
		require.NoError(t, e.Close())
		select {
		case <-e.sweeper.ended:
		default:
			require.Fail(t, "it still runs")
		}
	}
}

// Leases that end while the coarse clock runs are noticed as soon as others, and not with its next tick.
func TestLeasesEndBetweenTicksOfTheCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1})
		e.wantClock()
		time.Sleep(2 * coarseTick)
		for i := range 30 {
			lease := 3*sweepPause + time.Duration(i)*700*time.Microsecond
			_, err := e.Begin(t.Context(), Request{Key: "k", Lease: lease})
			require.NoError(t, err)
			time.Sleep(lease + 2*sweepPause)
			synctest.Wait()
			require.Zero(t, e.Len(), "a lease of %v", lease)
			e.wantClock()
		}
		require.NotZero(t, e.clock.coarse.Load(), "or else this shows nothing")
	})
}
