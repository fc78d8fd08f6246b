package fasthttpidem_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// operation returns the context of the operation that a handler runs.
func operation(ctx *fasthttp.RequestCtx) context.Context {
	op, _ := fasthttpidem.FromContext(ctx)
	return op.Context()
}

func TestMaxRunEndsTheOperationsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		var h fasthttp.RequestHandler
		h = guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{MaxRun: 50 * time.Second})(func(ctx *fasthttp.RequestCtx) {
			<-operation(ctx).Done()
			assert.Equal(t, 50*time.Second, time.Since(start))
			assert.Equal(t, context.DeadlineExceeded, operation(ctx).Err())
			assert.Equal(t, context.DeadlineExceeded, context.Cause(operation(ctx)))
			time.Sleep(10 * time.Minute) // it does not heed its context, but it still runs
			requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
			ctx.SetStatusCode(http.StatusCreated)
		})
		require.Equal(t, 201, call(t, h, "k", "").status)
		requireReplayed(t, call(t, h, "k", ""), 201, "")
	})
}

func TestMaxRunIsFiveMinutes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		h := guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) { <-operation(ctx).Done() })
		call(t, h, "k", "")
		require.Equal(t, 5*time.Minute, time.Since(start))
	})
}

func TestClaimIsExtendedWhileTheHandlerRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{Lease: 3 * time.Second})
		extended := 0
		store.OnExtend = func() error { extended++; return nil }
		var runs atomic.Int32
		h := guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(*fasthttp.RequestCtx) { time.Sleep(30500 * time.Millisecond) }))
		done := make(chan answer)
		go func() { done <- call(t, h, "k", "") }()
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			again := call(t, h, "k", "")
			requireProblem(t, again, 409, httpidem.CodeInProgress)
			require.Contains(t, []string{"2", "3"}, again.get("Retry-After"), "the lease is never near its end")
		}
		require.Equal(t, 200, (<-done).status)
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, 30, extended)
		time.Sleep(time.Minute)
		require.Equal(t, 30, extended)
	})
}

func TestClaimThatCannotBeExtended(t *testing.T) {
	t.Run("is no matter if it can be before the lease ends", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			fails := 5
			store.OnExtend = func() error {
				if fails--; fails > 0 {
					return httpcases.ErrDown
				}
				return nil
			}
			h := guardWith(t, store, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
				time.Sleep(2 * time.Minute)
				check(t, operation(ctx).Err())
			})
			require.Equal(t, 200, call(t, h, "k", "").status)
		})
	})
	t.Run("ends the operation's context with its lease", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			store.OnExtend = func() error { return httpcases.ErrDown }
			start := time.Now()
			h := guardWith(t, store, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
				<-operation(ctx).Done()
				assert.Equal(t, idem.ErrClaimLost, context.Cause(operation(ctx)))
				assert.Equal(t, context.Canceled, operation(ctx).Err())
				assert.Equal(t, 30*time.Second, time.Since(start))
			})
			require.Equal(t, 200, call(t, h, "k", "").status, "nobody else took the key, so that the answer counts")
			requireReplayed(t, call(t, h, "k", ""), 200, "")
		})
	})
	t.Run("does not hold the answer up when the store hangs", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			start := time.Now()
			h := guardWith(t, hangingExtend{newFaultyStore(t, idem.Config{})}, fasthttpidem.Config{})(func(*fasthttp.RequestCtx) { time.Sleep(11 * time.Second) })
			require.Equal(t, 200, call(t, h, "k", "").status)
			require.Equal(t, 11*time.Second, time.Since(start))
		})
	})
}

func TestClaimThatSomebodyElseHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		var log bytes.Buffer
		var runs atomic.Int32
		var h fasthttp.RequestHandler
		h = guardWith(t, store, fasthttpidem.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			if runs.Load() > 1 {
				ctx.SetBodyString("second")
				return
			}
			_, err := store.Store.(idem.Inspector).Forget(t.Context(), "", "secret-key")
			check(t, err)
			assert.Equal(t, "second", call(t, h, "secret-key", "").body)
			<-operation(ctx).Done()
			assert.Equal(t, idem.ErrClaimLost, context.Cause(operation(ctx)))
			ctx.SetBodyString("first")
		}))
		requireProblem(t, call(t, h, "secret-key", ""), 503, httpidem.CodeStoreUnavailable)
		requireReplayed(t, call(t, h, "secret-key", ""), 200, "second")
		require.Contains(t, log.String(), "claim lost")
		require.NotContains(t, log.String(), "secret-key")
	})
}

// hangingExtend does not answer Extend before its context ends.
type hangingExtend struct{ idem.Store }

func (hangingExtend) Extend(ctx context.Context, _ idem.Claim, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A lateExtend takes so long that its answer comes after the claim was given up, unless that waits.
type lateExtend struct{ idem.Store }

func (s lateExtend) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	<-ctx.Done()
	time.Sleep(time.Second)
	return s.Store.Extend(context.WithoutCancel(ctx), c, lease)
}

func TestNoExtendComesAfterAbandon(t *testing.T) {
	for name, answer := range map[string]fasthttp.RequestHandler{
		"bytes":    status(503, ""),
		"a stream": func(ctx *fasthttp.RequestCtx) { streaming(503, parts())(ctx) },
		"a panic":  func(*fasthttp.RequestCtx) { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var runs atomic.Int32
				h := guardWith(t, lateExtend{newEngine(t, idem.Config{})}, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
					if runs.Load() == 1 {
						time.Sleep(10*time.Second + 1) // the first Extend is on its way
					}
					answer(ctx)
				}))
				for range 2 { // the key is free
					func() {
						defer func() { _ = recover() }()
						require.Equal(t, 503, call(t, h, "k", "").status)
					}()
				}
				require.EqualValues(t, 2, runs.Load())
			})
		})
	}
}

// The timer of one claim is left to the next, which may begin at any time and ask for another lease.
func TestClaimsThatFollowEachOtherAreExtended(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Second, 10 * time.Second, time.Minute} {
		for _, lease := range []time.Duration{3 * time.Second, 30 * time.Second, 5 * time.Minute} {
			t.Run(pause.String()+" "+lease.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					store := newFaultyStore(t, idem.Config{Lease: 30 * time.Second})
					extended, run := 0, time.Duration(0)
					store.OnExtend = func() error { extended++; return nil }
					granted := 30 * time.Second
					h := guardWith(t, httpcases.LeasingStore{Store: store, Lease: &granted}, fasthttpidem.Config{MaxRun: time.Hour})(func(*fasthttp.RequestCtx) { time.Sleep(run) })
					require.Equal(t, 200, call(t, h, "quick", "").status)
					time.Sleep(pause)
					run, granted = lease*10+lease/6, lease
					require.Equal(t, 200, call(t, h, "slow", "").status)
					require.Equal(t, 30, extended)
				})
			})
		}
	}
}
