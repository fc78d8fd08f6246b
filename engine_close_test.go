package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// sweepers returns how many goroutines of engines there are.
func sweepers() int {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	return strings.Count(string(buf), "idem.(*Engine).sweep(")
}

// eventually waits for what happens soon, but not at once.
func eventually(tb testing.TB, ok func() bool, why string) {
	tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		require.True(tb, time.Now().Before(deadline), why)
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	eventually(t, func() bool { return sweepers() == 0 }, "other tests have closed their engines")
	before := runtime.NumGoroutine()
	level := func() bool { return sweepers() == 0 && runtime.NumGoroutine() <= before }

	t.Run("by an engine that was not used", func(t *testing.T) {
		var unused []*idem.Engine // nor closed
		for range 100 {
			e, err := idem.New(idem.Config{Shards: 1})
			require.NoError(t, err)
			_, _, err = e.Lookup(t.Context(), "", "k")
			require.NoError(t, err)
			_, err = e.Forget(t.Context(), "", "k")
			require.NoError(t, err)
			unused = append(unused, e)
		}
		require.Zero(t, sweepers())
		runtime.KeepAlive(unused)
	})
	t.Run("after New and Close a thousand times", func(t *testing.T) {
		for i := range 1000 {
			e, err := idem.New(idem.Config{Shards: 2})
			require.NoError(t, err)
			if i%2 == 0 {
				_, err = e.Begin(t.Context(), idem.Request{Key: "k"})
				require.NoError(t, err)
			}
			require.NoError(t, e.Close())
		}
		eventually(t, func() bool { return sweepers() == 0 }, "goroutines stay level")
	})
	t.Run("after Close with waiters", func(t *testing.T) {
		e, err := idem.New(idem.Config{})
		require.NoError(t, err)
		r := rig{t, e}
		r.fresh("k", 0)
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				_, err := e.Begin(context.Background(), idem.Request{Key: "k", Wait: true})
				if !errors.Is(err, idem.ErrClosed) {
					t.Errorf("a waiter got %v", err)
				}
			})
		}
		eventually(t, func() bool { return e.Stats().Waiting == 50 }, "all wait")
		require.NoError(t, e.Close())
		callers.Wait()
		require.Zero(t, e.Stats().Waiting)
	})
	eventually(t, level, "goroutines are back to what they were")
}

func TestOneGoroutineServesAll(t *testing.T) {
	eventually(t, func() bool { return sweepers() == 0 }, "other tests have closed their engines")
	r := newRig(t, idem.Config{})
	for i := range 1000 {
		r.done(fmt.Sprint(i), "b", time.Duration(i+1)*time.Microsecond)
	}
	eventually(t, func() bool { return sweepers() == 1 }, "one has begun to run")
}

func TestAfterClose(t *testing.T) {
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		bubble(t, idem.Config{OnLeaseExpiry: policy, MaxRecords: 10}, func(r rig) {
			done, claimed := r.done("done", "b", 0), r.fresh("claimed", time.Hour)
			lapsed := r.fresh("lapsed", time.Second)
			time.Sleep(time.Second)
			require.NoError(r, r.Close())
			require.NoError(r, r.Close(), "closing twice is fine")
			for _, c := range []idem.Claim{done, claimed, lapsed, {Key: "new", Token: done.Token}} {
				for name, err := range r.everyMethod(r.Context(), c) {
					require.ErrorIs(r, err, idem.ErrClosed, name)
				}
			}
			require.NoError(r, r.Abandon(r.Context(), idem.Claim{}))
			require.Zero(r, r.Len())
			require.Empty(r, slices.Collect(r.All()))
			st := r.Stats()
			require.Equal(r, []int{0, 0, 0, 0}, []int{st.Records, st.InProgress, st.Waiting, st.Bytes})
			require.EqualValues(r, 3, st.Fresh, "what was counted can still be read")
		})
	}
}

// Close comes while calls of all kinds are under way. Each must end, with an answer or with ErrClosed.
func TestCloseUnderLoad(t *testing.T) {
	for range 10 {
		e, err := idem.New(idem.Config{Shards: 2})
		require.NoError(t, err)
		var callers sync.WaitGroup
		running := make(chan struct{}, 8)
		for worker := range cap(running) {
			callers.Go(func() { useUntilClosed(t, e, worker, running) })
		}
		for range cap(running) {
			<-running
		}
		for range 3 {
			callers.Go(func() {
				if err := e.Close(); err != nil || e.Len() != 0 {
					t.Errorf("close: %v, %d records", err, e.Len())
				}
			})
		}
		callers.Wait()
		if t.Failed() {
			return
		}
	}
}

func useUntilClosed(t *testing.T, e *idem.Engine, worker int, running chan<- struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // for one that is never told
	defer cancel()
	run := sync.OnceFunc(func() { running <- struct{}{} })
	defer run() // whoever fails before keeps nobody waiting
	for i := 0; ; i++ {
		if i == 20 {
			run()
		}
		out, err := e.Begin(ctx, idem.Request{Key: fmt.Sprint(i % 7), Wait: true})
		if err == nil && out.State == idem.Fresh {
			switch (i + worker) % 3 {
			case 0:
				err = e.Complete(ctx, out.Claim, idem.Response{Body: make([]byte, 300*worker), TTL: time.Microsecond})
			case 1:
				err = e.Abandon(ctx, out.Claim)
			default:
				_, err = e.Forget(ctx, "", out.Claim.Key)
			}
		}
		for range e.All() {
			break
		}
		if errors.Is(err, idem.ErrClosed) {
			if i < 20 {
				t.Error("closed before it was")
			}
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

func TestAllCallsTheLoopBodyOutsideLocks(t *testing.T) {
	r := newRig(t, idem.Config{Shards: 1})
	for i := range 200 {
		r.done(fmt.Sprint(i), "b", time.Hour)
	}
	n := 0
	for rec := range r.All() { // any method, on any key
		n++
		r.replays(rec.Key, "b")
		require.Equal(t, idem.Fresh, r.state(fmt.Sprint("new", n)))
		r.forget(rec.Key, true)
		_, _, _ = r.Lookup(t.Context(), "", rec.Key)
		require.Positive(t, r.Len())
		for range r.All() {
			break
		}
	}
	require.GreaterOrEqual(t, n, 200)
	require.PanicsWithValue(t, "boom", func() {
		for range r.All() {
			panic("boom")
		}
	})
	for range r.All() {
		require.NoError(t, r.Close())
	}
	require.Empty(t, slices.Collect(r.All()))
}
