package redisstore_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// soon wants f to return within five seconds, which is much more than the bounds that tests set.
func soon(tb testing.TB, f func() error) error {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		require.FailNow(tb, "it does not return")
		return nil
	}
}

// A connection that was given the deadline notices it by itself. No channel says so then.
func TestSettlingReturnsWithinItsBound(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"client that heeds deadlines": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			server, direct := start(t)
			proxy := proxied(t, server.Addr)
			p := prefix()
			s := open(t, client(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: heeds}), redisstore.Config{Prefix: p})
			s.SetBound(100 * time.Millisecond)
			claim := fresh(t, s, request("k"))
			proxy.BlackHole(true)
			ways := map[string]func() error{
				"complete": func() error { return s.Complete(t.Context(), claim, text("lost")) },
				"extend":   func() error { return s.Extend(t.Context(), claim, long) },
				"abandon":  func() error { return s.Abandon(t.Context(), claim) },
			}
			for what, do := range ways {
				require.ErrorContains(t, soon(t, do), "redisstore: "+what)
			}
			proxy.BlackHole(false)
			proxy.Cut()
			require.NoError(t, s.Complete(t.Context(), claim, text("done")))
			expect(t, open(t, direct, redisstore.Config{Prefix: p}), idem.Replay, request("k"))
		})
	}
}

// The line is dead while an operation runs, for longer than a heartbeat may take, and comes back.
func TestDoOverAnOutage(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	proxy := proxied(t, server.Addr)
	s := open(t, client(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true}), redisstore.Config{})
	s.SetBound(100 * time.Millisecond)
	req := request("k")
	req.Lease = 300 * time.Millisecond
	require.NoError(t, soon(t, func() error {
		_, err := idem.Do(t.Context(), s, req, func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
			proxy.BlackHole(true)
			<-ctx.Done() // no heartbeat gets through
			proxy.BlackHole(false)
			proxy.Cut()
			return text("done"), nil
		})
		return err
	}))
	require.Equal(t, "done", string(expect(t, s, idem.Replay, req).Response.Body))
}

// A single connection is made for the call, and no less deaf than those of a pool.
func TestDeadLineOfASingleConnection(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"client that heeds deadlines": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			server, _ := start(t)
			proxy := proxied(t, server.Addr)
			c := client(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: heeds})
			cfg := redisstore.Config{Prefix: prefix()}
			claim := fresh(t, open(t, c, cfg), request("claimed"))
			cfg.MinReplicas = 1
			s := open(t, c, cfg)
			s.SetBound(200 * time.Millisecond)
			proxy.BlackHole(true)
			cause := errors.New("out of patience")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
			defer cancel()
			from := time.Now()
			_, err := s.Begin(ctx, request("k"))
			require.ErrorIs(t, err, cause)
			require.ErrorContains(t, s.Complete(t.Context(), claim, text("lost")), "redisstore: complete")
			require.Less(t, time.Since(from), 2*time.Second)
			proxy.BlackHole(false)
			proxy.Cut()
		})
	}
}

// A stuck server takes a minute to connect to.
type stuck struct {
	redisstore.Adapter
	conns atomic.Int32
}

func (s *stuck) Pinned(context.Context, string, func(redisstore.Conn) error) error {
	s.conns.Add(1)
	time.Sleep(time.Minute)
	return errors.New("stuck")
}

func TestNoSecondConnectionIsMadeWhenTheTimeIsUp(t *testing.T) {
	cfg := redisstore.Config{Prefix: prefix(), MinReplicas: 1}
	claim := fresh(t, open(t, connect(t), redisstore.Config{Prefix: cfg.Prefix}), request("k"))
	synctest.Test(t, func(t *testing.T) {
		server := &stuck{}
		s, err := redisstore.NewWith(server, cfg)
		require.NoError(t, err)
		from := time.Now()
		require.ErrorIs(t, s.Complete(t.Context(), claim, text("lost")), context.DeadlineExceeded)
		require.Equal(t, 5250*time.Millisecond, time.Since(from))
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, server.conns.Load())
		require.NoError(t, s.Close())
	})
}

type carriedKey struct{}

// A moody server refuses the first script, and does the next one.
type moody struct {
	redisstore.Adapter
	runs atomic.Int32
}

func (m *moody) Run(context.Context, *redisstore.Script, string, ...string) (string, error) {
	if m.runs.Add(1) == 1 {
		return "", errors.New("in a bad mood")
	}
	return "K", nil
}

// A store lives as long as its process. A Begin that fails must not stay in it, nor what its context carries.
func TestNothingStaysOfAClaimThatWasGivenUp(t *testing.T) {
	m := &moody{}
	s, err := redisstore.NewWith(m, redisstore.Config{})
	require.NoError(t, err)
	carried := new([1 << 10]byte)
	gone := weak.Make(carried)
	_, err = s.Begin(context.WithValue(t.Context(), carriedKey{}, carried), request("k"))
	require.ErrorContains(t, err, "in a bad mood")
	eventually(t, func() bool {
		runtime.GC()
		return m.runs.Load() == 2 && gone.Value() == nil
	}, "given up and forgotten")
	require.NoError(t, s.Close())
}
