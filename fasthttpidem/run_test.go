package fasthttpidem_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
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

// call sends a request with the key through h, in process. Fields are name, value pairs.
func call(tb testing.TB, h fasthttp.RequestHandler, key, body string, fields ...string) answer {
	tb.Helper()
	var ctx fasthttp.RequestCtx
	ctx.Init(newRequest(key, body, fields...), nil, log.New(io.Discard, "", 0))
	h(&ctx)
	var sent bytes.Buffer
	w := bufio.NewWriter(&sent)
	check(tb, errors.Join(ctx.Response.Write(w), w.Flush()))
	return readAnswer(bufio.NewReaderSize(&sent, 64<<10))
}

// check is for handlers, and goroutines of clients, that must go on when something is wrong.
func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

// bubble runs f in a bubble of testing/synctest. The goroutine by which fasthttp tells the date must be outside of it.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	call(t, status(200, ""), "k", "")
	synctest.Test(t, f)
}

// eventually calls ok until it is true, for ten seconds at most.
func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		require.False(t, time.Now().After(deadline), "%s did not come to pass", what)
		<-time.After(time.Millisecond)
	}
}

func TestPolicies(t *testing.T) {
	for name, test := range httpcases.Policies {
		for code, want := range test.Want {
			t.Run(name+" "+http.StatusText(code), func(t *testing.T) {
				var runs atomic.Int32
				h := guard(t, fasthttpidem.Config{Policy: test.Policy})(counted(&runs, status(code, "")))
				require.Equal(t, code, call(t, h, "k", "").status)
				again := call(t, h, "k", "")
				switch want {
				case httpcases.Stored:
					requireReplayed(t, again, code, "")
				case httpcases.Released:
					require.Equal(t, code, again.status)
					require.Empty(t, again.get("Idempotency-Replayed"))
				case httpcases.Held:
					requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
					require.Empty(t, again.get("Retry-After"))
				}
				require.EqualValues(t, map[string]int{httpcases.Stored: 1, httpcases.Released: 2, httpcases.Held: 1}[want], runs.Load())
			})
		}
	}
}

func TestHoldOutlastsTheLease(t *testing.T) {
	// Under TakeOver, too: what is held must not depend on what the store does with a lease that ran out.
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{OnLeaseExpiry: idem.TakeOver, TTL: time.Hour})
		var runs atomic.Int32
		h := guardWith(t, store, fasthttpidem.Config{Policy: httpidem.HoldAmbiguous})(counted(&runs, status(504, "")))
		call(t, h, "k", "")
		time.Sleep(time.Hour - time.Nanosecond)
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
		require.EqualValues(t, 1, runs.Load())
		time.Sleep(time.Nanosecond)
		require.Equal(t, 504, call(t, h, "k", "").status)
		require.EqualValues(t, 2, runs.Load())
	})
}

func TestPrincipalsDoNotShareKeys(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")})(
		counted(&runs, func(ctx *fasthttp.RequestCtx) {
			_, _ = ctx.WriteString("for " + string(ctx.Request.Header.Peek("Authorization")))
		})))
	for _, name := range []string{"ann", "bob"} {
		require.Equal(t, "for "+name, post(t, server, "k", "", "Authorization", name).body)
	}
	for _, name := range []string{"ann", "bob"} {
		requireReplayed(t, post(t, server, "k", "", "Authorization", name), 200, "for "+name)
	}
	requireProblem(t, post(t, server, "k", ""), 401, httpidem.CodeScopeUnknown)
	require.EqualValues(t, 2, runs.Load())
}

func TestHandlerThatDoesNotAnswerReleasesTheKey(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("no") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newFaultyStore(t, idem.Config{})
				var runs atomic.Int32
				h := guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
					if runs.Load() == 1 {
						ctx.SetBodyString("half an answer")
						end()
					}
				}))
				ended := make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					call(t, h, "k", "")
				}()
				if p := <-ended; name == "panic" {
					require.Equal(t, "no", p)
				} else {
					require.Nil(t, p)
				}
				require.Equal(t, 200, call(t, h, "k", "").status)
				require.EqualValues(t, 2, runs.Load())
			})
		})
	}
}

// A middleware outside that turns panics into an answer has its say, on the connection that goes on.
func TestPanicReachesTheMiddlewareOutside(t *testing.T) {
	var runs atomic.Int32
	inner := guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		if runs.Load() == 1 {
			panic("no")
		}
		ctx.SetStatusCode(http.StatusCreated)
	}))
	server := startServer(t, func(ctx *fasthttp.RequestCtx) {
		defer func() {
			if p := recover(); p != nil {
				ctx.Error("recovered", http.StatusInternalServerError)
			}
		}()
		inner(ctx)
	})
	w := server.dial(t)
	w.sendRaw(postText("k", ""))
	first := w.answer()
	require.Equal(t, 500, first.status)
	require.Equal(t, "recovered", first.body)
	w.sendRaw(postText("k", ""))
	require.Equal(t, 201, w.answer().status)
	w.sendRaw(postText("k", ""))
	requireReplayed(t, w.answer(), 201, "")
	require.EqualValues(t, 2, runs.Load())
}

func TestPanicAfterTheHandlerKeepsTheKey(t *testing.T) {
	// A policy that panics is a mistake, but the handler has run.
	for name, conf := range map[string]fasthttpidem.Config{
		"Policy":     {Policy: func(int) httpidem.Action { panic("no") }},
		"Redact":     {Redact: func(*fasthttp.Response) { panic("no") }},
		"KeepHeader": {KeepHeader: func(string) bool { panic("no") }},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			h := guard(t, conf)(counted(&runs, status(201, "", "X-Any", "1")))
			require.PanicsWithValue(t, "no", func() { call(t, h, "k", "") })
			requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

func TestClientThatLeavesFindsTheResult(t *testing.T) {
	var runs atomic.Int32
	started, proceed := make(chan struct{}), make(chan struct{})
	server := startServer(t, guard(t, fasthttpidem.Config{Wait: time.Minute})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		op, _ := fasthttpidem.FromContext(ctx)
		close(started)
		<-proceed
		check(t, op.Context().Err())
		_, _ = ctx.WriteString("paid")
	})))
	w := server.dial(t)
	w.sendRaw(postText("k", ""))
	<-started
	require.NoError(t, w.Close())
	close(proceed)
	requireReplayed(t, post(t, server, "k", ""), 200, "paid")
	require.EqualValues(t, 1, runs.Load())
}

// A client that has the answer finds it recorded, however fast it comes back.
func TestResponseIsRecordedBeforeItIsSent(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		op, _ := fasthttpidem.FromContext(ctx)
		_, _ = ctx.WriteString(op.Claim().Key)
	})))
	first, second := server.dial(t), server.dial(t)
	const rounds = 300
	for range rounds {
		key := "k" + time.Now().Format("150405.000000000")
		first.sendRaw(postText(key, ""))
		require.Equal(t, key, first.answer().body)
		second.sendRaw(postText(key, ""))
		requireReplayed(t, second.answer(), 200, key)
	}
	require.EqualValues(t, rounds, runs.Load())
}

// TestTimeoutHandlerOutside: the client is told that it took too long, the handler goes on, and a retry gets its answer.
func TestTimeoutHandlerOutside(t *testing.T) {
	var runs atomic.Int32
	proceed := make(chan struct{})
	server := startServer(t, fasthttp.TimeoutHandler(guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		<-proceed
		ctx.Response.Header.Set("Location", "/payments/1")
		ctx.SetStatusCode(http.StatusCreated)
		_, _ = ctx.WriteString(string(ctx.Request.Body()))
	})), 100*time.Millisecond, "late"))
	const rounds = 10
	w, keys := server.dial(t), strings.Split("abcdefghij", "")
	for _, key := range keys {
		w.sendRaw(postText(key, "paid "+key))
		first := w.answer()
		require.Equal(t, http.StatusRequestTimeout, first.status)
		require.Equal(t, "late", first.body)
		w.sendRaw(postText(key, "paid "+key))
		requireProblem(t, w.answer(), 409, httpidem.CodeInProgress)
	}
	close(proceed)
	for _, key := range keys {
		again := postUntilDone(t, server, key, "paid "+key)
		requireReplayed(t, again, 201, "paid "+key)
		require.Equal(t, "/payments/1", again.get("Location"))
	}
	require.EqualValues(t, rounds, runs.Load())
}

// TestTimeoutHandlerOutsideOfAStream: what the handler answers with is a stream that nobody will ever read.
func TestTimeoutHandlerOutsideOfAStream(t *testing.T) {
	var runs atomic.Int32
	proceed, ended := make(chan struct{}), make(chan error, 1)
	server := startServer(t, fasthttp.TimeoutHandler(guard(t, fasthttpidem.Config{MaxRun: time.Second})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		<-proceed
		ctx.SetBodyStream(fasthttp.NewStreamReader(ticking(ended)), -1)
	})), 100*time.Millisecond, "late"))
	require.Equal(t, http.StatusRequestTimeout, post(t, server, "k", "").status)
	close(proceed)
	require.Error(t, <-ended, "the writer ends with the operation")
	again := postUntilDone(t, server, "k", "")
	requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
	require.EqualValues(t, 1, runs.Load())
}

func TestHijackedConnectionIsTheHandlers(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine") })
	})))
	require.Equal(t, "mine", post(t, server, "k", "").body)
	requireProblem(t, post(t, server, "k", ""), 410, httpidem.CodeResponseNotRetained)
	require.EqualValues(t, 1, runs.Load())
}

// Also when the response that the server sends first is a stream.
func TestHijackedConnectionAfterAStream(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) { _, _ = w.WriteString("first") })
		ctx.Hijack(func(c net.Conn) { _ = c.Close() })
	})))
	require.Equal(t, "first", post(t, server, "k", "").body)
	require.EqualValues(t, 101, requireProblem(t, post(t, server, "k", ""), 410, httpidem.CodeResponseNotRetained)["original_status"])
	require.EqualValues(t, 1, runs.Load())
}

func TestOperationContext(t *testing.T) {
	type key struct{}
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		var after func() error
		conf := fasthttpidem.Config{MaxRun: time.Hour, Context: func(*fasthttp.RequestCtx) context.Context {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
			cancel() // only its values count
			return ctx
		}}
		h := guardWith(t, live{store}, conf)(func(ctx *fasthttp.RequestCtx) {
			op, ok := fasthttpidem.FromContext(ctx)
			assert.True(t, ok)
			after = op.Context().Err
			check(t, op.Context().Err())
			assert.Equal(t, "value", op.Context().Value(key{}))
			deadline, ok := op.Context().Deadline()
			assert.True(t, ok)
			assert.Equal(t, time.Hour, time.Until(deadline))
		})
		require.Equal(t, 200, call(t, h, "k", "").status)
		require.ErrorIs(t, after(), context.Canceled)
		requireReplayed(t, call(t, h, "k", ""), 200, "")
	})
}

// live is a store that does not look at the context of Begin.
type live struct{ idem.Store }

func (s live) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	return s.Store.Begin(context.WithoutCancel(ctx), req)
}
