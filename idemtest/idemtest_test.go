package idemtest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// references makes the stores that are right by being simple.
func references() idemtest.Maker {
	return idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		s := newReference(cfg)
		tb.Cleanup(func() { require.NoError(tb, s.Close()) })
		return s
	}}
}

// engines makes those that are right by being tested.
func engines() idemtest.Maker {
	return idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		e, err := idem.New(idem.Config{
			Shards: 4, Lease: cfg.Lease, TTL: cfg.TTL, OnLeaseExpiry: cfg.OnLeaseExpiry,
			MaxKeyBytes: cfg.MaxKeyBytes, MaxResponseBytes: cfg.MaxResponseBytes, MaxRecords: cfg.MaxRecords,
			MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey,
		})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, e.Close()) })
		return e
	}}
}

func TestReferencePasses(t *testing.T) { idemtest.Run(t, references()) }

func TestReferencePassesInABubble(t *testing.T) {
	for _, row := range idemtest.Rows() {
		t.Run(row.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { row.Run(t, references()) })
		})
	}
}

func TestRowsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range idemtest.Rows() {
		require.False(t, seen[row.String()], row.String())
		require.True(t, strings.HasSuffix(row.String(), "/"+row.Name))
		require.Greater(t, len(row.Explanation), 30, row.Name)
		seen[row.String()] = true
	}
	require.True(t, seen["TakeOver/wait/end of the lease wakes one"])
	require.False(t, seen["Hold/wait/end of the lease wakes one"])
	require.True(t, seen["TakeOver/replay/byte for byte"])
	require.True(t, seen["Hold/replay/byte for byte"])
}

// failed runs rows, or all, in a bubble and returns what those that failed have printed, by name.
func failed(t *testing.T, m idemtest.Maker, rows ...idemtest.Row) map[string]string {
	t.Helper()
	names := map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		for _, f := range idemtest.Check(t, m, rows...) {
			names[f.Row.Name] = f.Log
		}
	})
	return names
}

// bare is a store that can do no more than it must.
type bare struct{ idem.Store }

// TestUnsupported: what a maker declares is not asked for, and what it does not declare is.
func TestUnsupported(t *testing.T) {
	m := idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		return bare{references().New(tb, idemtest.Config{OnLeaseExpiry: cfg.OnLeaseExpiry})}
	}}
	got := failed(t, m)
	require.Contains(t, got["inspect/lookup"], "bare is no idem.Inspector; set Maker.Unsupported")
	require.Contains(t, got["close/wakes all"], "bare is no io.Closer; set Maker.Unsupported")
	for _, name := range []string{"limit/records", "limit/response", "wait/cap per key", "wait/cap in all",
		"lease/zero is the default", "ttl/zero is the default", "hold/ttl ends it"} {
		require.Contains(t, got, name)
	}
	m.Unsupported = idemtest.Inspector | idemtest.Closer | idemtest.DefaultLease | idemtest.DefaultTTL |
		idemtest.MaxResponseBytes | idemtest.MaxRecords | idemtest.MaxWaiters | idemtest.MaxWaitersPerKey
	require.Empty(t, failed(t, m))
}

// TestUnsupportedPolicy: a store that has one policy only is not asked for the other.
func TestUnsupportedPolicy(t *testing.T) {
	only := map[idem.LeasePolicy]idemtest.Feature{idem.TakeOver: idemtest.Hold, idem.Hold: idemtest.TakeOver}
	for policy, lacking := range only {
		m := idemtest.Maker{Unsupported: lacking, New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
			tb.Helper()
			require.Equal(tb, policy, cfg.OnLeaseExpiry)
			return references().New(tb, cfg)
		}}
		require.Empty(t, failed(t, m))
	}
}

// A listener hears what a row logs.
type listener struct {
	testing.TB
	heard []string
}

func (l *listener) Logf(format string, args ...any) {
	l.heard = append(l.heard, fmt.Sprintf(format, args...))
}

func TestRowsThatAreNotRunSaySo(t *testing.T) {
	l := &listener{TB: t}
	for _, row := range idemtest.Rows() {
		if row.Name == "limit/records" {
			row.Run(l, idemtest.Maker{Unsupported: idemtest.MaxRecords | idemtest.Hold})
		}
	}
	require.Equal(t, []string{
		"limit/records: not proven, the store's maker does not support MaxRecords",
		"limit/records: not proven, the store's maker does not support Hold|MaxRecords",
	}, l.heard)
}

func TestFeatureString(t *testing.T) {
	require.Empty(t, idemtest.Feature(0).String())
	require.Equal(t, "TakeOver|Closer", (idemtest.TakeOver | idemtest.Closer).String())
	require.Equal(t, "MaxWaitersPerKey|Feature(1<<20)", (idemtest.MaxWaitersPerKey | 1<<20).String())
}

// TestResolution: a clock that is as coarse as the maker says is no fault, a coarser one is.
func TestResolution(t *testing.T) {
	const late = 5 * time.Millisecond
	m := withFault(fault{inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
		if resp.TTL > 0 && resp.TTL < time.Hour {
			resp.TTL += late
		}
	})}, references())
	require.Contains(t, failed(t, m), "ttl/exact")
	m.Resolution = late - 1
	require.Contains(t, failed(t, m), "ttl/exact")
	m.Resolution = late
	require.Empty(t, failed(t, m))
}

// TestSlackAndRounds: both reach the store.
func TestSlackAndRounds(t *testing.T) {
	var mu sync.Mutex
	var ttl time.Duration
	var begins int
	m := withFault(fault{inject: func(b *broken, cfg idemtest.Config) {
		mu.Lock()
		defer mu.Unlock()
		ttl = max(ttl, cfg.TTL)
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			mu.Lock()
			begins++
			mu.Unlock()
			return b.whole.Begin(ctx, req)
		}
	}}, references())
	require.Empty(t, failed(t, m))
	plainTTL, plainBegins := ttl, begins
	m.Slack, m.Rounds = 2.5, 20
	ttl, begins = 0, 0
	require.Empty(t, failed(t, m))
	require.Equal(t, plainTTL*5/2, ttl)
	require.Greater(t, begins, plainBegins*3/2)
}

// slow calls a store that is far away, through a bad line.
func slow(f func()) {
	time.Sleep(50 * time.Millisecond)
	f()
	time.Sleep(30 * time.Millisecond)
}

// TestSlowStore: no row asks that a store be quick, even when what is to run out does so in between.
func TestSlowStore(t *testing.T) {
	m := withFault(fault{inject: func(b *broken, _ idemtest.Config) {
		b.begin = func(ctx context.Context, req idem.Request) (out idem.Outcome, err error) {
			slow(func() { out, err = b.whole.Begin(ctx, req) })
			return out, err
		}
		b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) (err error) {
			slow(func() { err = b.whole.Complete(ctx, c, resp) })
			return err
		}
		b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) (err error) {
			slow(func() { err = b.whole.Extend(ctx, c, lease) })
			return err
		}
	}}, references())
	require.Empty(t, failed(t, m))
}
