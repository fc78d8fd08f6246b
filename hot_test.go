package idem

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// makeHot publishes key's record, as replays under contention would, and starts the coarse clock. The shard's
// hot record is returned; it is nil when the record may not be hot.
func makeHot(t testing.TB, e *Engine, key string) *hotRecord {
	t.Helper()
	s := e.shardOf("", key)
	s.mu.Lock()
	r, rec := s.findLocked(e.hash("", key), "", key)
	require.NotZero(t, r)
	s.publishLocked(r, rec)
	s.publishLocked(r, rec)
	s.mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); e.clock.coarse.Load() == 0; runtime.Gosched() {
		e.wantClock()
		require.True(t, time.Now().Before(deadline), "the coarse clock starts when it is wanted")
	}
	return s.hot.Load()
}

func TestHotRecord(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	keep(t, e, "k", "body", time.Hour)
	want, err := e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	require.NotNil(t, makeHot(t, e, "k"))
	checkInvariants(t, e)

	s, buf := &e.shards[0], make([]byte, 0, 10)
	hot := func(req Request) (Outcome, bool) {
		var out Outcome
		ok := s.replayHot(&req, &out)
		return out, ok
	}
	t.Run("is replayed like any other", func(t *testing.T) {
		got, ok := hot(Request{Key: "k"})
		require.True(t, ok)
		require.Equal(t, want, got)
		got, _ = hot(Request{Key: "k", Buf: buf})
		require.Equal(t, want, got)
		require.Same(t, &buf[:1][0], &got.Response.Header[0])
		got.Response.Body[0] = 'x' // the caller's
		got, _ = hot(Request{Key: "k"})
		require.Equal(t, want, got)
	})
	t.Run("is no other key's", func(t *testing.T) {
		for _, req := range []Request{{Key: "K"}, {Key: "k", Scope: "s"}, {Key: "k", Fingerprint: Fingerprint{1}}} {
			_, ok := hot(req)
			require.False(t, ok)
		}
		out, err := e.Begin(t.Context(), Request{Key: "k", Fingerprint: Fingerprint{1}})
		require.NoError(t, err)
		require.Equal(t, Mismatch, out.State)
	})
	t.Run("takes no lock and allocates nothing", func(t *testing.T) {
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			if out, err := e.Begin(t.Context(), Request{Key: "k", Buf: buf}); err != nil || out.State != Replay {
				t.Fatal(out.State, err)
			}
		}))
	})
	t.Run("is counted", func(t *testing.T) {
		before := e.Stats().Replayed
		for range 1000 {
			_, ok := hot(Request{Key: "k", Buf: buf})
			require.True(t, ok)
		}
		require.Equal(t, before+1000, e.Stats().Replayed)
	})
	t.Run("gives way to the next one", func(t *testing.T) {
		keep(t, e, "l", "other", time.Hour)
		require.Equal(t, "l", makeHot(t, e, "l").key)
		checkInvariants(t, e)
		_, ok := hot(Request{Key: "k"})
		require.False(t, ok)
	})
	t.Run("is published when it is replayed many times in a row", func(t *testing.T) {
		for _, key := range []string{"this", "that"} {
			keep(t, e, key, "b", time.Hour)
		}
		replay := func(key string, times int) {
			for range times {
				_, err := e.Begin(t.Context(), Request{Key: key})
				require.NoError(t, err)
			}
		}
		for range 10 { // others in between
			replay("this", hotRun-1)
			replay("that", hotRun-1)
		}
		require.Equal(t, "l", s.hot.Load().key)
		replay("this", hotRun)
		require.Equal(t, "this", s.hot.Load().key)
		checkInvariants(t, e)
	})
	t.Run("is published when callers queue for it", func(t *testing.T) {
		keep(t, e, "queued", "b", time.Hour)
		var callers sync.WaitGroup
		for deadline := time.Now().Add(20 * time.Second); s.hot.Load().key != "queued"; callers.Wait() {
			require.True(t, time.Now().Before(deadline))
			s.mu.Lock()
			callers.Go(func() { _, _ = e.Begin(t.Context(), Request{Key: "queued"}) })
			for range 100 {
				runtime.Gosched()
			}
			s.mu.Unlock()
		}
	})
	t.Run("is not large", func(t *testing.T) {
		keep(t, e, "large", string(make([]byte, maxHot)), time.Hour)
		require.NotEqual(t, "large", makeHot(t, e, "large").key)
	})
}

// A reader that begins after the change must not see what was before it, so the copy goes first.
func TestHotRecordIsWithdrawn(t *testing.T) {
	for name, change := range map[string]func(t testing.TB, e *Engine){
		"by Forget": func(t testing.TB, e *Engine) {
			found, err := e.Forget(t.Context(), "", "k")
			require.NoError(t, err)
			require.True(t, found)
		},
		"by the end of its TTL": func(testing.TB, *Engine) { time.Sleep(time.Hour); synctest.Wait() },
		"by Close":              func(t testing.TB, e *Engine) { require.NoError(t, e.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := openForTest(t, Config{Shards: 1})
				keep(t, e, "k", "body", time.Hour)
				e.wantClock()
				time.Sleep(2 * coarseTick)
				require.NotNil(t, makeHot(t, e, "k"))
				change(t, e)
				out, _ := e.Begin(t.Context(), Request{Key: "k"})
				require.NotEqual(t, Replay, out.State)
				if name != "by the end of its TTL" { // which the sweeper notices a little later
					require.Nil(t, e.shards[0].hot.Load())
				}
				time.Sleep(2 << tickBits)
				synctest.Wait()
				require.Nil(t, e.shards[0].hot.Load())
				checkInvariants(t, e)
			})
		})
	}
}

// Each body is the token of the claim that wrote it. After Forget has returned nobody may get a body from
// before it, however hot the key was, and every replay is counted.
func TestForgetRacesHotReplays(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	var floor, replays atomic.Uint64
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			buf := make([]byte, 0, 8)
			for ; !stop.Load(); runtime.Gosched() {
				least := floor.Load()
				out, err := e.Begin(t.Context(), Request{Key: "k", Buf: buf})
				switch {
				case err != nil:
					t.Error(err)
				case out.State == Fresh:
					token := binary.BigEndian.AppendUint64(nil, out.Claim.Token)
					_ = e.Complete(t.Context(), out.Claim, Response{Body: token})
				case out.State == Replay:
					replays.Add(1)
					if got := binary.BigEndian.Uint64(out.Response.Body); got < least {
						t.Errorf("a body of claim %d, when claims below %d were forgotten", got, least)
					}
				}
			}
		})
	}
	end := func() { stop.Store(true); readers.Wait() }
	defer end()
	hot := func() uint64 { return e.hits.total() + e.shards[0].hotHits.Load() }
	// However the readers are scheduled: until enough hot records were forgotten, and enough replays came from them.
	for forgotten := 0; forgotten < 200 || hot() < 200; {
		rec, found, err := e.Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		if found && rec.State == Replay {
			makeHot(t, e, "k")
			runtime.Gosched()
			_, _ = e.Forget(t.Context(), "", "k")
			floor.Store(rec.Token + 1)
			forgotten++
		}
		runtime.Gosched()
	}
	end()
	require.Equal(t, replays.Load(), e.Stats().Replayed)
}

// The coarse clock stops when nobody needs it. Who wants it at that moment must not be overlooked.
func TestCoarseClock(t *testing.T) {
	t.Run("runs while replays are frequent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openForTest(t, Config{Shards: 1})
			keep(t, e, "k", "b", 24*time.Hour)
			require.Zero(t, e.clock.coarse.Load())
			for range 100 {
				for range usedEvery {
					_, err := e.Begin(t.Context(), Request{Key: "k"})
					require.NoError(t, err)
				}
				time.Sleep(coarseTick)
			}
			require.InDelta(t, e.clock.now(), e.clock.coarse.Load(), float64(2*coarseTick))
			time.Sleep(3 * coarseIdle * coarseTick)
			require.Zero(t, e.clock.coarse.Load())
		})
	})
	t.Run("is not overlooked when it stops", wishForTheClockThatStops)
	t.Run("starts again after a wish that came when it had stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openForTest(t, Config{Shards: 1})
			keep(t, e, "k", "b", 24*time.Hour)
			time.Sleep(time.Second) // the sweeper sleeps
			e.clock.use(usedEvery)  // by who found it running, and was held up
			for range 2 * usedEvery {
				_, err := e.Begin(t.Context(), Request{Key: "k"})
				require.NoError(t, err)
			}
			time.Sleep(2 * coarseTick)
			require.NotZero(t, e.clock.coarse.Load())
		})
	})
}

// wishForTheClockThatStops is the sweeper that stops the clock, while a caller wishes for it. The two meet only
// within some ns, so each spins until the other is there.
func wishForTheClockThatStops(t *testing.T) {
	const rounds = 3000
	e := openForTest(t, Config{Shards: 1})
	e.sweeper.once.Do(func() { close(e.sweeper.ended) })
	var begun, wished atomic.Int64
	meet := func(n *atomic.Int64, round int64) {
		for i := 1; n.Load() < round; i++ {
			if i%100 == 0 {
				runtime.Gosched()
			}
		}
	}
	var caller sync.WaitGroup
	defer caller.Wait()
	caller.Go(func() {
		for i := range int64(rounds) {
			meet(&begun, i+1)
			for range i % 40 {
				begun.Load() // a few ns, another number of them each time
			}
			e.wantClock()
			wished.Store(i + 1)
		}
	})
	overlooked := 0
	for i := range int64(rounds) {
		e.clock.coarse.Store(1)
		e.clock.wanted.Store(false)
		e.clock.idle = coarseIdle
		begun.Store(i + 1)
		for range i % 7 {
			begun.Load()
		}
		runs := e.clock.tick(2)
		meet(&wished, i+1)
		if !runs && len(e.sweeper.wake) == 0 {
			overlooked++
		}
		select {
		case <-e.sweeper.wake:
		default:
		}
	}
	require.Zero(t, overlooked, "the clock stands although it is wanted, and the sweeper sleeps")
}

// Whatever a response is marked with comes with its hot replays too.
func TestHotRecordKeepsTheMarks(t *testing.T) {
	for name, resp := range map[string]Response{
		"failed":    {Status: -1, Body: []byte("declined"), Failed: true},
		"truncated": {Status: 200, Header: []byte("h"), Truncated: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := openForTest(t, Config{Shards: 1})
			out, err := e.Begin(t.Context(), Request{Key: "k"})
			require.NoError(t, err)
			require.NoError(t, e.Complete(t.Context(), out.Claim, resp))
			want, err := e.Begin(t.Context(), Request{Key: "k"})
			require.NoError(t, err)
			h := makeHot(t, e, "k")
			require.NotNil(t, h)
			var got Outcome
			require.True(t, h.replay(&Request{Key: "k"}, &got))
			require.Equal(t, want, got)
			require.Equal(t, []bool{resp.Failed, resp.Truncated}, []bool{got.Response.Failed, got.Response.Truncated})
		})
	}
}

// Who still reads a hot record when it is withdrawn finds it as it was, whatever lies in its cell by then.
func TestHotRecordIsACopy(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	keep(t, e, "k", "before", time.Hour)
	h := makeHot(t, e, "k")
	_, err := e.Forget(t.Context(), "", "k")
	require.NoError(t, err)
	keep(t, e, "l", "behind", time.Hour)
	require.Equal(t, "hbefore", string(h.payload))
}

// A key that comes again after it was forgotten becomes hot like any other, although its record may lie in the same cell.
func TestHotAgain(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	for range 3 {
		keep(t, e, "k", "b", time.Hour)
		for range 2 * hotRun {
			_, err := e.Begin(t.Context(), Request{Key: "k"})
			require.NoError(t, err)
		}
		require.NotNil(t, e.shards[0].hot.Load())
		require.Same(t, e.shards[0].hot.Load(), e.hottest.Load())
		_, err := e.Forget(t.Context(), "", "k")
		require.NoError(t, err)
	}
}

// Every counter counts, whichever of them the processors find.
func TestHitsOfAllCounters(t *testing.T) {
	var h hits
	h.init(3)
	for i := range h.counters {
		h.counters[i].n.Add(1)
	}
	require.EqualValues(t, 3*hitCounters, h.total())
}

// As long as the hot record is asked for the clock goes on that its replays need, whoever counts them.
func TestHotReplaysKeepTheClockGoing(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := openForTest(t, Config{Shards: 1})
			s := &e.shards[0]
			keep(t, e, "k", "b", 24*time.Hour)
			e.wantClock()
			time.Sleep(2 * coarseTick)
			require.NotNil(t, makeHot(t, e, "k"))
			s.hotCrowded.Store(crowded)
			for range 3 * coarseIdle {
				for range 2 * usedEvery * len(e.hits.counters) {
					require.True(t, s.replayHot(&Request{Key: "k"}, new(Outcome)))
				}
				time.Sleep(coarseTick)
				synctest.Wait()
			}
		})
	}
}

// What a tiered store replays becomes hot, and keeps the clock going, as an engine's own does.
func TestTieredReplaysBecomeHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, remote := openForTest(t, Config{Shards: 1}), openForTest(t, Config{})
		keep(t, remote, "k", "b", 24*time.Hour)
		store := Tiered(local, remote)
		for range 2 * usedEvery {
			out, err := store.Begin(t.Context(), Request{Key: "k"})
			require.NoError(t, err)
			require.Equal(t, Replay, out.State)
		}
		require.NotNil(t, local.hottest.Load())
		time.Sleep(2 * coarseTick)
		require.NotZero(t, local.clock.coarse.Load())
	})
}
