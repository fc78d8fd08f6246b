package idem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func openForTest(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// keep records body under key.
func keep(t testing.TB, e *Engine, key, body string, ttl time.Duration) Claim {
	t.Helper()
	out, err := e.Begin(t.Context(), Request{Key: key})
	if err != nil || out.State != Fresh {
		t.Fatal(out.State, err)
	}
	if err := e.Complete(t.Context(), out.Claim, Response{Status: 7, Header: []byte("h"), Body: []byte(body), TTL: ttl}); err != nil {
		t.Fatal(err)
	}
	return out.Claim
}

// The parts of an engine agree at any moment, not only at rest.
func TestInvariantsUnderLoad(t *testing.T) {
	for _, policy := range []LeasePolicy{TakeOver, Hold} {
		e := openForTest(t, Config{Shards: 2, OnLeaseExpiry: policy, TTL: 2 * time.Millisecond, MaxRecords: 300})
		var stop atomic.Bool
		var callers sync.WaitGroup
		for worker := range uint64(6) {
			callers.Go(func() {
				for rnd := rand.New(rand.NewPCG(worker, 0)); !stop.Load(); runtime.Gosched() {
					useOnce(t, e, rnd)
				}
			})
		}
		lookOn(t, e, func() { stop.Store(true); callers.Wait() })
		audit(t, e)
		require.Zero(t, e.Stats().Waiting)
	}
}

// New records take the place of those that are due also while the sweeper gets no processor.
func TestFreshBeginsReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1})
		e.sweeper.once.Do(func() { close(e.sweeper.ended) }) // it will never start
		for i := range 1000 {
			keep(t, e, fmt.Sprint(i), "body", time.Second)
		}
		time.Sleep(2 * time.Second)
		for i := range 1000 {
			keep(t, e, fmt.Sprint("new ", i), "body", time.Second)
			require.LessOrEqual(t, e.Len(), 1000, "after %d new records", i+1)
			audit(t, e)
		}
		require.Equal(t, 1000, e.Len(), "what was due is gone, and nothing else")
	})
}

// lookOn audits e for a while, and calls stop even when it finds a fault.
func lookOn(t *testing.T, e *Engine, stop func()) {
	defer stop()
	for range 100 {
		audit(t, e)
		for range 20 {
			runtime.Gosched()
		}
	}
}

// useOnce calls some method for some key.
func useOnce(t *testing.T, e *Engine, rnd *rand.Rand) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(2000))*time.Microsecond)
	defer cancel()
	key := fmt.Sprint(rnd.IntN(1 << rnd.IntN(10)))
	out, err := e.Begin(ctx, Request{Key: key, Wait: rnd.IntN(2) == 0, Lease: time.Duration(rnd.IntN(3000)) * time.Microsecond})
	if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	switch rnd.IntN(8) {
	case 0:
		_, _ = e.Forget(t.Context(), "", key)
	case 1:
		_ = e.Resolve(t.Context(), "", key, Response{})
	case 2:
		_ = e.Abandon(t.Context(), out.Claim)
	case 3:
		_ = e.Extend(t.Context(), out.Claim, time.Millisecond)
	default:
		_ = e.Complete(t.Context(), out.Claim, Response{Body: make([]byte, rnd.IntN(1<<rnd.IntN(16)))})
	}
}

// Responses that are recorded at an even pace are reclaimed at one, although each shard does so for a whole slot at a time.
func TestExpiryIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, ttl, step = 6400, time.Hour, 10 * time.Second
		e := openForTest(t, Config{Shards: 64})
		for i := range n {
			keep(t, e, fmt.Sprint(i), "b", ttl)
			time.Sleep(70 * time.Millisecond) // seven minutes in all; a slot that is an hour off is one minute wide
		}
		most := 0
		for before := n; before > 0; before = e.Len() {
			time.Sleep(step)
			synctest.Wait()
			most = max(most, before-e.Len())
		}
		require.Less(t, most, n/16, "143 a step on average; 1,000 if the shards' slots ended together")
	})
}

// However much is due, a caller waits for one slice of it at most.
func TestExpirySlicesAreBounded(t *testing.T) {
	const n, budget = 2000, 32
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1})
		s := &e.shards[0]
		for i := range n {
			keep(t, e, fmt.Sprint(i), "b", time.Hour+time.Duration(i%2)*24*time.Hour)
		}
		slices := 0
		for more := true; more; slices++ {
			before := s.index.n
			more = s.expire(int64(400*24*time.Hour), budget)
			require.LessOrEqual(t, before-s.index.n, budget)
			if slices%20 == 0 {
				checkInvariants(t, e)
				keep(t, e, fmt.Sprint("between", slices), "b", 500*24*time.Hour)
			}
		}
		require.GreaterOrEqual(t, slices, n/budget)
		require.LessOrEqual(t, slices, (n+slices)/budget+1, "each record is looked at once")
		require.Equal(t, uint64(n), e.Stats().Expired)
	})
}

func TestJump(t *testing.T)      { jump(t, 2000) }
func TestHeavyJump(t *testing.T) { jump(t, 1_000_000) }

// jump lets a machine sleep for 400 days with n records, whose deadlines lie all over them. When it wakes, they are
// all over at once.
func jump(t *testing.T, n int) {
	const asleep = 400 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 4})
		body := string(make([]byte, 200))
		for i := range n {
			key, life := fmt.Sprint(i), time.Minute+time.Duration(i)*(asleep/time.Duration(n))
			if i%2 == 0 {
				keep(t, e, key, body, life)
			} else if out, err := e.Begin(t.Context(), Request{Key: key, Lease: life}); err != nil || out.State != Fresh {
				t.Fatal(out.State, err)
			}
		}
		keep(t, e, "longer", body, 2*asleep)
		checkInvariants(t, e)
		// The clock of a bubble stops at every timer in between. So not it is moved, but what it is compared with.
		time.Sleep(2 * sweepPause)
		synctest.Wait()
		e.clock.start = e.clock.start.Add(-asleep - asleep/maxLag)
		e.nudge() // the sweeper sees the new start through the channel
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 1, e.Len())
		st := e.Stats()
		require.Equal(t, []uint64{uint64(n / 2), uint64(n / 2)}, []uint64{st.Expired, st.LeasesExpired})
		out, err := e.Begin(t.Context(), Request{Key: "longer"})
		require.NoError(t, err)
		require.Equal(t, Replay, out.State)
		checkInvariants(t, e)
	})
}

// Begin takes a cell of the size that the response will need, so that Complete need not move the record.
func TestCompleteSeldomMovesARecord(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	s, moved := &e.shards[0], 0
	place := func(key string) ref {
		r, _ := s.findLocked(e.hash("", key), "", key)
		return r
	}
	for i := range 1000 {
		key := fmt.Sprintf("%036d", i)
		out, err := e.Begin(t.Context(), Request{Key: key})
		require.NoError(t, err)
		before := place(key)
		require.NoError(t, e.Complete(t.Context(), out.Claim, Response{Body: make([]byte, 190+i%20)}))
		if place(key) != before {
			moved++
		}
	}
	require.Less(t, moved, 100)
	checkInvariants(t, e)
}

// Keys that share a hash are told apart by their names, of which scope and key are two.
func TestKeysThatShareAHash(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	s, names := &e.shards[0], [][2]string{{"", "abc"}, {"a", "bc"}, {"ab", "c"}, {"", "ab"}, {"", "abcd"}, {"", "ABC"}, {"b", "ac"}}
	s.mu.Lock()
	defer s.mu.Unlock()
	refs := make([]ref, len(names))
	for i, n := range names {
		require.NoError(t, s.admitLocked(recordSize(n[0], n[1], 0)))
		refs[i], _ = s.createLocked(n[0], n[1], 42, recordSize(n[0], n[1], 0))
	}
	for i, n := range names {
		found, rec := s.findLocked(42, n[0], n[1])
		require.Equal(t, refs[i], found)
		require.Equal(t, n[0]+"/"+n[1], string(rec.scope())+"/"+string(rec.key()))
	}
	for _, n := range [][2]string{{"abc", ""}, {"", "a"}, {"a", "b"}, {"", "abd"}} {
		found, _ := s.findLocked(42, n[0], n[1])
		require.Zero(t, found)
	}
}

func TestDefaultShards(t *testing.T) {
	for procs, want := range map[int]int{1: 32, 2: 64, 3: 128, 64: 2048, 2048: maxShards, 2049: maxShards, 1 << 20: maxShards} {
		require.Equal(t, want, defaultShards(procs), "%d processors", procs)
	}
}

// Each claim may become a slab of its own, whose numbers must not run out: nobody could refuse a response then.
func TestClaimsLeaveRoomForTheirSlabs(t *testing.T) {
	e := openForTest(t, Config{Shards: 1, Lease: time.Hour})
	var last Claim
	granted := 0
	for ; granted <= maxSlabs; granted++ {
		out, err := e.Begin(t.Context(), Request{Key: fmt.Sprint(granted)})
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
		last = out.Claim
	}
	require.Greater(t, granted, 130_000, "as Config.Shards says")
	require.LessOrEqual(t, granted+len(e.shards[0].arena.slabs), maxSlabs/2+1)

	require.NoError(t, e.Complete(t.Context(), last, Response{}))
	out, err := e.Begin(t.Context(), Request{Key: "another"})
	require.NoError(t, err)
	require.Equal(t, Fresh, out.State)
}

// useUpNumbers leaves the first shard no numbers of slabs for cells of their own.
func useUpNumbers(e *Engine) {
	a := &e.shards[0].arena
	n := maxSlabs - maxSlabs/16 + 1 - len(a.slabs)
	a.memory, a.slabs = append(a.memory, make([]memory, n)...), append(a.slabs, make([]slab, n)...)
}

// A response that would take the last numbers of slabs is cut, since nobody could record that operations ran without them.
func TestNumbersThatRunOut(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	out, err := e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	useUpNumbers(e)

	large := Response{Status: 201, Body: make([]byte, maxShared)}
	for range 2 {
		require.ErrorIs(t, e.Complete(t.Context(), out.Claim, large), ErrTruncated)
	}
	out, err = e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	require.Equal(t, Replay, out.State)
	require.Equal(t, 201, out.Response.Status)
	require.True(t, out.Response.Truncated)
	require.Empty(t, out.Response.Body)
}

// The defaults are what the fields of Config say.
func TestDefaults(t *testing.T) {
	require.Equal(t, Config{
		Shards: defaultShards(runtime.GOMAXPROCS(0)), TTL: 24 * time.Hour, Lease: 30 * time.Second,
		MaxKeyBytes: 255, MaxResponseBytes: 1 << 20, MaxBytes: min(4<<30, math.MaxInt),
		MaxWaiters: 65536, MaxWaitersPerKey: 1024,
	}, openForTest(t, Config{}).cfg)
}

// Keys that share a hash are on the same page, each of them once.
func TestListOfKeysThatShareAHash(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	s, keys := &e.shards[0], []string{"a", "b", "c"}
	claim := func(key string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.claimLocked(0, nil, &Request{Key: key}, 42, e.clock.now(), new(Outcome))
	}
	for _, key := range keys {
		require.NoError(t, claim(key))
	}
	var listed []string
	for rec := range e.All() {
		listed = append(listed, rec.Key)
	}
	require.ElementsMatch(t, keys, listed)
}

// What was copied for a snapshot stays as it is when its cell is used again.
func TestSavedRecordsAreCopies(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	keep(t, e, "k", "before", time.Hour)
	saved, _, err := e.shards[0].save(0, nil)
	require.NoError(t, err)
	require.Len(t, saved, 1)
	_, err = e.Forget(t.Context(), "", "k")
	require.NoError(t, err)
	keep(t, e, "l", "behind", time.Hour)
	require.Equal(t, "khbefore", string(saved[0].rest))
}

// Only responses that would take a number are cut when those run out.
func TestSmallResponsesWhenNumbersRunOut(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	out, err := e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	useUpNumbers(e)
	require.NoError(t, e.Complete(t.Context(), out.Claim, Response{Body: []byte("small")}))
	out, err = e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	require.Equal(t, "small", string(out.Response.Body))
}

// A snapshot for whose records there are no numbers left is refused, and says so.
func TestRestoreWhenNumbersRunOut(t *testing.T) {
	e, next := openForTest(t, Config{Shards: 1}), openForTest(t, Config{Shards: 1})
	keep(t, e, "k", "b", time.Hour)
	var saved bytes.Buffer
	require.NoError(t, e.Snapshot(&saved))
	a := &next.shards[0].arena
	a.memory, a.slabs = make([]memory, maxSlabs/2+1), make([]slab, maxSlabs/2+1)
	require.ErrorIs(t, next.Restore(&saved), ErrFull)
	st := next.Stats()
	require.Zero(t, st.Records)
	require.EqualValues(t, 1, st.Refused)
}

// takeNumbers takes all slab numbers of a shard but some.
func takeNumbers(e *Engine, left int) {
	a := &e.shards[0].arena
	for len(a.slabs) < maxSlabs-left {
		a.memory, a.slabs = append(a.memory, memory{make([]byte, 1), 1}), append(a.slabs, slab{class: noClass, used: 1, cell: 1, size: 1})
	}
	a.lowest = len(a.slabs)
}

// Resolve leaves the last numbers alone, as Complete does.
func TestResolveWhenNumbersRunOut(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	for _, key := range []string{"a", "b"} {
		_, err := e.Begin(t.Context(), Request{Key: key})
		require.NoError(t, err)
	}
	takeNumbers(e, 1)
	for _, key := range []string{"a", "b"} {
		require.ErrorIs(t, e.Resolve(t.Context(), "", key, Response{Status: 201, Body: make([]byte, maxShared)}), ErrTruncated)
		out, err := e.Begin(t.Context(), Request{Key: key})
		require.NoError(t, err)
		require.Equal(t, Replay, out.State)
		require.True(t, out.Response.Truncated)
	}
}
