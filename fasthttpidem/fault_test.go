package fasthttpidem_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

func TestCompleteFails(t *testing.T) {
	t.Run("once, and is tried again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			fails := 1
			store.OnComplete = func(*idem.Response) error {
				if fails--; fails >= 0 {
					return httpcases.ErrDown
				}
				return nil
			}
			h := guardWith(t, store, fasthttpidem.Config{})(status(201, "answer"))
			require.Equal(t, "answer", call(t, h, "k", "").body)
			requireReplayed(t, call(t, h, "k", ""), 201, "answer")
		})
	})
	t.Run("to answer in time, and is tried again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			store := &stuckStore{Store: newEngine(t, idem.Config{})}
			start := time.Now()
			h := guardWith(t, store, fasthttpidem.Config{MaxRun: time.Hour})(status(201, "answer"))
			require.Equal(t, "answer", call(t, h, "k", "").body)
			require.LessOrEqual(t, time.Since(start), 21*time.Second)
			requireReplayed(t, call(t, h, "k", ""), 201, "answer")
		})
	})
	t.Run("because the store keeps less: the client gets the answer, a retry does not run it", func(t *testing.T) {
		var runs atomic.Int32
		h := guardWith(t, newEngine(t, idem.Config{MaxResponseBytes: 100}), fasthttpidem.Config{})(counted(&runs, status(201, strings.Repeat("x", 101))))
		require.Len(t, call(t, h, "k", "").body, 101)
		members := requireProblem(t, call(t, h, "k", ""), 410, httpidem.CodeResponseNotRetained)
		require.EqualValues(t, 201, members["original_status"])
		require.EqualValues(t, 1, runs.Load())
	})
}

// stuckStore does not answer Complete the first time before its context ends.
type stuckStore struct {
	idem.Store
	asked bool
}

func (s *stuckStore) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if !s.asked {
		s.asked = true
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.Store.Complete(ctx, c, resp)
}

// TestCompleteFailsForEver: the client gets no result, and the key is kept until the lease ends.
func TestCompleteFailsForEver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		store.OnComplete = func(*idem.Response) error { return httpcases.ErrDown }
		store.OnAbandon = func() error { t.Error("the key must not be released"); return nil }
		var runs atomic.Int32
		inner := guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			status(201, "answer", "Location", "/1", "X-Outer", "changed", "Set-Cookie", "a=b", "Trailer", "X-Sum")(ctx)
			ctx.SetContentType("text/csv")
			ctx.Response.SkipBody = true
		}))
		h := func(ctx *fasthttp.RequestCtx) {
			ctx.Response.Header.Set("X-Outer", "1")
			ctx.Response.Header.Add("Vary", "Origin")
			ctx.Response.Header.Add("Vary", "Accept")
			inner(ctx)
		}
		first := call(t, h, "k", "")
		requireProblem(t, first, 503, httpidem.CodeStoreUnavailable)
		require.Equal(t, "1", first.get("Retry-After"))
		for _, name := range []string{"Location", "Set-Cookie", "Trailer"} {
			require.NotContains(t, first.header, name, "of the answer that was not given")
		}
		require.Equal(t, []string{"1"}, first.header["X-Outer"], "as the middleware outside has set it")
		require.Equal(t, []string{"Origin", "Accept"}, first.header["Vary"])
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
		time.Sleep(20 * time.Second)
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
		require.EqualValues(t, 1, runs.Load())
		store.OnComplete = nil
		time.Sleep(10 * time.Second)
		require.Equal(t, 201, call(t, h, "k", "").status, "nobody holds the key any more")
		require.EqualValues(t, 2, runs.Load())
	})
}

func TestUnknownOfTheStoreIsToldLikeHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{OnLeaseExpiry: idem.Hold})
		store.OnComplete = func(*idem.Response) error { return httpcases.ErrDown }
		h := guardWith(t, store, fasthttpidem.Config{})(status(201, ""))
		requireProblem(t, call(t, h, "k", ""), 503, httpidem.CodeStoreUnavailable)
		time.Sleep(time.Minute)
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
	})
}

func TestCompleteIsNotTriedAgainInVain(t *testing.T) {
	for _, final := range []error{idem.ErrClaimLost, idem.ErrClosed} {
		bubble(t, func(t *testing.T) {
			store, tries := newFaultyStore(t, idem.Config{}), 0
			store.OnComplete = func(*idem.Response) error { tries++; return final }
			a := call(t, guardWith(t, store, fasthttpidem.Config{})(status(201, "")), "k", "")
			requireProblem(t, a, 503, httpidem.CodeStoreUnavailable)
			require.Equal(t, 1, tries)
		})
	}
}

func TestClaimIsExtendedWhileCompleteIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, extended, failures := newFaultyStore(t, idem.Config{Lease: 3 * time.Second}), 0, 0
		store.OnExtend = func() error { extended++; return nil }
		store.OnComplete = func(*idem.Response) error {
			if failures++; failures < 5 {
				return httpcases.ErrDown
			}
			return nil
		}
		require.Equal(t, 201, call(t, guardWith(t, store, fasthttpidem.Config{})(status(201, "")), "k", "").status)
		require.Equal(t, 2, extended, "the attempts take 2.62 seconds")
	})
}

func TestAbandonFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		store.OnAbandon = func() error { return httpcases.ErrDown }
		var log bytes.Buffer
		h := guardWith(t, store, fasthttpidem.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})(status(500, "failed"))
		require.Equal(t, "failed", call(t, h, "secret-key", "").body, "the answer is the handler's all the same")
		require.Contains(t, log.String(), "could not be given up")
		require.NotContains(t, log.String(), "secret-key")
		requireProblem(t, call(t, h, "secret-key", ""), 409, httpidem.CodeInProgress)
		time.Sleep(30 * time.Second)
		require.Equal(t, 500, call(t, h, "secret-key", "").status)
	})
}

func TestBeginFails(t *testing.T) {
	for name, cause := range map[string]error{"down": httpcases.ErrDown, "full": idem.ErrFull, "closed": idem.ErrClosed} {
		t.Run(name, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			store.OnBegin = func() error { return cause }
			var runs atomic.Int32
			handler := counted(&runs, func(ctx *fasthttp.RequestCtx) {
				_, guarded := fasthttpidem.FromContext(ctx)
				assert.False(t, guarded)
				_, _ = ctx.Write(ctx.PostArgs().Peek("a"))
			})
			const form = "application/x-www-form-urlencoded"
			refused := call(t, guardWith(t, store, fasthttpidem.Config{})(handler), "k", "a=1", "Content-Type", form)
			requireProblem(t, refused, 503, httpidem.CodeStoreUnavailable)
			require.Equal(t, "1", refused.get("Retry-After"))
			require.Zero(t, runs.Load())

			var log bytes.Buffer
			open := guardWith(t, store, fasthttpidem.Config{FailOpen: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})(handler)
			require.Equal(t, "1", call(t, open, "secret-key", "a=1", "Content-Type", form).body)
			require.EqualValues(t, 1, runs.Load())
			require.Contains(t, log.String(), "without protection")
			require.NotContains(t, log.String(), "secret-key")
		})
	}
}

// A store that hangs must not hold requests for good, and the log must say that it was the store.
func TestStoreThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		timeout, want time.Duration
		open          bool
		status        int
	}{
		"for 5 seconds":     {want: 5 * time.Second, status: 503},
		"for what is set":   {timeout: time.Second, want: time.Second, status: 503},
		"and may fail open": {timeout: time.Second, want: time.Second, open: true, status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var log bytes.Buffer
				h := guardWith(t, hangingBegin{newFaultyStore(t, idem.Config{})}, fasthttpidem.Config{
					StoreTimeout: c.timeout, FailOpen: c.open, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})(status(200, ""))
				start := time.Now()
				require.Equal(t, c.status, call(t, h, "k", "").status)
				require.Equal(t, c.want, time.Since(start))
				require.Contains(t, log.String(), "(Config.StoreTimeout)")
				require.Contains(t, log.String(), "method=POST path=/payments")
			})
		})
	}
}

// hangingBegin does not answer Begin before its context ends.
type hangingBegin struct{ idem.Store }

func (hangingBegin) Begin(ctx context.Context, _ idem.Request) (idem.Outcome, error) {
	<-ctx.Done()
	return idem.Outcome{}, ctx.Err()
}

// While a duplicate waits for the owner, the store has nothing to answer yet.
func TestWaitLongerThanTheStoreMayTake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs atomic.Int32
		_, send := serve(t, guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{StoreTimeout: time.Second, Wait: time.Minute})(
			counted(&runs, func(*fasthttp.RequestCtx) { time.Sleep(20 * time.Second) })))
		go send("k", "")
		synctest.Wait()
		requireReplayed(t, send("k", ""), 200, "")
		require.EqualValues(t, 1, runs.Load())
	})
}

// A store that fails while a duplicate waits is not asked once more, nor is the duplicate told to wait.
func TestStoreThatFailsWhileADuplicateWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs, begins atomic.Int32
		store := newFaultyStore(t, idem.Config{})
		store.OnBegin = func() error {
			if begins.Add(1) == 3 { // after the owner's, and the first look of the duplicate
				return httpcases.ErrDown
			}
			return nil
		}
		_, send := serve(t, guardWith(t, store, fasthttpidem.Config{Wait: time.Minute})(counted(&runs, func(*fasthttp.RequestCtx) { time.Sleep(time.Second) })))
		done := make(chan struct{})
		go func() { defer close(done); send("k", "") }()
		synctest.Wait()
		requireProblem(t, send("k", ""), 503, httpidem.CodeStoreUnavailable)
		require.EqualValues(t, 3, begins.Load(), "it is not asked once more")
		<-done
		require.EqualValues(t, 1, runs.Load())
	})
}
