package verify_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// noLeak fails t if a goroutine that was not there before is running after t and all its clean-up.
func noLeak(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// TestConformanceLeaksNothing is the whole suite of rules again, for what it leaves behind.
func TestConformanceLeaksNothing(t *testing.T) {
	noLeak(t)
	idemtest.Run(t, idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		e, err := idem.New(idem.Config{
			TTL: cfg.TTL, Lease: cfg.Lease, OnLeaseExpiry: cfg.OnLeaseExpiry,
			MaxKeyBytes: cfg.MaxKeyBytes, MaxResponseBytes: cfg.MaxResponseBytes,
			MaxRecords: cfg.MaxRecords, MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey,
		})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, e.Close()) })
		return e
	}})
}

func TestCloseLeaksNoWaiter(t *testing.T) {
	noLeak(t)
	e := newEngine(t, setting{shards: 4})
	req := idem.Request{Key: "k", Wait: true}
	_, err := e.Begin(t.Context(), req)
	require.NoError(t, err)
	var waiters sync.WaitGroup
	for range 50 {
		waiters.Go(func() {
			_, _ = e.Begin(context.Background(), req) // the others' answer does not matter here
		})
	}
	require.Eventually(t, func() bool { return e.Stats().Waiting == 50 }, time.Minute, time.Millisecond)
	require.NoError(t, e.Close())
	waiters.Wait()
}

// TestDoLeaksNothing lets the operation run for some heartbeats and end in each of its ways.
func TestDoLeaksNothing(t *testing.T) {
	failed := errors.New("failed")
	for _, test := range []struct {
		name string
		end  func(e *idem.Engine) (idem.Response, error)
	}{
		{"returns", func(*idem.Engine) (idem.Response, error) { return idem.Response{}, nil }},
		{"fails", func(*idem.Engine) (idem.Response, error) { return idem.Response{}, failed }},
		{"fails for good", func(*idem.Engine) (idem.Response, error) { return idem.Response{}, idem.Permanent(failed) }},
		{"panics", func(*idem.Engine) (idem.Response, error) { panic(failed) }},
		{"exits", func(*idem.Engine) (idem.Response, error) { runtime.Goexit(); return idem.Response{}, nil }},
		{"finds the store closed", func(e *idem.Engine) (idem.Response, error) { return idem.Response{}, e.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			noLeak(t)
			e := newEngine(t, setting{shards: 1})
			var caller sync.WaitGroup
			caller.Go(func() {
				defer func() { _ = recover() }()
				_, _ = idem.Do(context.Background(), e, idem.Request{Key: "k", Lease: 5 * time.Millisecond},
					func(context.Context, idem.Claim) (idem.Response, error) {
						beats(t, e, 2)
						return test.end(e)
					})
			})
			caller.Wait()
		})
	}
}

// beats waits for n heartbeats. It does not fail t, because it runs in another goroutine.
func beats(t *testing.T, e *idem.Engine, n uint64) {
	t.Helper()
	for giveUp := time.Now().Add(time.Minute); e.Stats().Extended < n; runtime.Gosched() {
		if time.Now().After(giveUp) {
			t.Errorf("no heartbeat within a minute")
			return
		}
	}
}
