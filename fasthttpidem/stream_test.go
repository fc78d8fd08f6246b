package fasthttpidem_test

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// streaming returns a handler that streams what comes from parts, which says nothing of its length.
func streaming(code int, parts <-chan string) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(code)
		ctx.SetContentType("text/event-stream")
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			for part := range parts {
				_, _ = w.WriteString(part)
				_ = w.Flush()
			}
		})
	}
}

// parts returns a channel that has all of them and is closed.
func parts(all ...string) <-chan string {
	c := make(chan string, len(all))
	for _, part := range all {
		c <- part
	}
	close(c)
	return c
}

// ticking writes until that fails, and tells how.
func ticking(ended chan<- error) fasthttp.StreamWriter {
	return func(w *bufio.Writer) {
		for {
			_, _ = w.WriteString("tick ")
			if err := w.Flush(); err != nil {
				ended <- err
				return
			}
		}
	}
}

// An opened answer is one whose body is not read yet.
type opened struct {
	io.Reader
	status int
	header http.Header
}

// open sends a request whose answer is a stream, and returns it as soon as its header is there.
func (w *wire) open(key, body string, fields ...string) opened {
	w.tb.Helper()
	w.sendRaw(postText(key, body, fields...))
	resp, err := http.ReadResponse(w.r, nil)
	require.NoError(w.tb, err)
	w.tb.Cleanup(func() { _ = resp.Body.Close() })
	return opened{resp.Body, resp.StatusCode, resp.Header}
}

// next reads what a part is expected to be.
func next(tb testing.TB, a opened, want string) {
	tb.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(a, got)
	require.NoError(tb, err)
	require.Equal(tb, want, string(got))
}

func TestStreamArrivesAsItIsWritten(t *testing.T) {
	var runs atomic.Int32
	events := make(chan string)
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, streaming(201, events))))
	w := server.dial(t)
	go func() { events <- "one " }()
	resp := w.open("k", "")
	require.Equal(t, 201, resp.status)
	next(t, resp, "one ")
	requireProblem(t, post(t, server, "k", ""), 409, httpidem.CodeInProgress)
	events <- "two "
	next(t, resp, "two ")
	again := post(t, server, "k", "")
	requireProblem(t, again, 409, httpidem.CodeInProgress)
	require.NotEmpty(t, again.get("Retry-After"))
	close(events)
	rest, err := io.ReadAll(resp)
	require.NoError(t, err)
	require.Empty(t, rest)

	w.sendRaw(postText("k", "")) // the connection goes on
	again = w.answer()
	requireReplayed(t, again, 201, "one two ")
	require.Equal(t, "text/event-stream", again.get("Content-Type"))
	require.EqualValues(t, 8, again.length)
	require.EqualValues(t, 1, runs.Load())
}

func TestHeaderOfAStreamMayBeSentAtOnce(t *testing.T) {
	events := make(chan string)
	server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		streaming(202, events)(ctx)
		ctx.Response.ImmediateHeaderFlush = true
	}))
	resp := server.dial(t).open("k", "")
	require.Equal(t, 202, resp.status, "before there is any body")
	close(events)
	_, err := io.Copy(io.Discard, resp)
	require.NoError(t, err)
}

func TestStreamIsRecordedBeforeItsEndIsHeard(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		op, _ := fasthttpidem.FromContext(ctx)
		key := op.Claim().Key
		streaming(200, parts("for ", key))(ctx)
	})))
	first, second := server.dial(t), server.dial(t)
	const rounds = 1000
	for i := range rounds {
		key := fmt.Sprint("key", i)
		first.sendRaw(postText(key, ""))
		require.Equal(t, "for "+key, first.answer().body)
		second.sendRaw(postText(key, ""))
		requireReplayed(t, second.answer(), 200, "for "+key)
	}
	require.EqualValues(t, rounds, runs.Load())
}

func TestDuplicateWaitsForTheEndOfAStream(t *testing.T) {
	engine := newEngine(t, idem.Config{})
	events := make(chan string)
	server := startServer(t, guardWith(t, engine, fasthttpidem.Config{Wait: time.Minute})(streaming(200, events)))
	w := server.dial(t)
	go func() { events <- "one " }()
	next(t, w.open("k", ""), "one ")
	waiting := server.dial(t)
	waiting.sendRaw(postText("k", ""))
	eventually(t, func() bool { return engine.Stats().Waiting == 1 }, "the wait")
	events <- "two"
	close(events)
	requireReplayed(t, waiting.answer(), 200, "one two")
}

func TestClientThatLeavesAStream(t *testing.T) {
	var runs atomic.Int32
	left, failed := make(chan struct{}), make(chan error, 1)
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			_, _ = w.WriteString("one ")
			_ = w.Flush()
			<-left
			var err error
			for range 100 {
				_, _ = w.WriteString(strings.Repeat("x", 1000))
				if e := w.Flush(); e != nil {
					err = e
				}
			}
			failed <- err
		})
	})))
	w := server.dial(t)
	next(t, w.open("k", ""), "one ")
	require.NoError(t, w.Conn.(*net.TCPConn).SetLinger(0)) // which makes the server's next write fail
	require.NoError(t, w.Close())
	close(left)
	require.NoError(t, <-failed, "the writer must not be told")
	again := postUntilDone(t, server, "k", "")
	require.Equal(t, "true", again.get("Idempotency-Replayed"))
	require.EqualValues(t, len("one ")+100_000, again.length)
	require.EqualValues(t, 1, runs.Load())
}

func TestStreamThatIsTooLong(t *testing.T) {
	var runs atomic.Int32
	long := strings.Repeat("0123456789", 10)
	for _, extra := range []string{"", "1"} {
		t.Run(fmt.Sprint(len(long+extra)), func(t *testing.T) {
			runs.Store(0)
			server := startServer(t, guard(t, fasthttpidem.Config{MaxResponseBytes: len(long)})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				streaming(201, parts(long, extra))(ctx)
			})))
			first := post(t, server, "k", "")
			require.Equal(t, long+extra, first.body)
			require.False(t, first.failed)
			again := post(t, server, "k", "")
			if extra == "" {
				requireReplayed(t, again, 201, long)
			} else {
				members := requireProblem(t, again, 410, httpidem.CodeResponseNotRetained)
				require.EqualValues(t, 201, members["original_status"])
			}
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

func TestPoliciesOfStreams(t *testing.T) {
	for name, test := range map[string]struct {
		code   int
		policy func(int) httpidem.Action
		late   func(*fasthttpidem.Operation) // by the function that streams
		runs   int32
	}{
		"released":             {code: 500, runs: 2},
		"stored all the same":  {code: 500, policy: httpidem.StoreAll, runs: 1},
		"held":                 {code: 504, policy: httpidem.HoldAmbiguous, runs: 1},
		"nothing has happened": {code: 200, late: (*fasthttpidem.Operation).NoStore, runs: 2},
		"nobody knows":         {code: 201, late: (*fasthttpidem.Operation).Hold, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{Policy: test.policy})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				op, _ := fasthttpidem.FromContext(ctx)
				ctx.SetStatusCode(test.code)
				ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
					_, _ = w.WriteString("answer")
					if test.late != nil {
						test.late(op)
					}
				})
			})))
			first := post(t, server, "k", "")
			require.Equal(t, test.code, first.status)
			require.Equal(t, "answer", first.body)
			switch again := post(t, server, "k", ""); {
			case test.policy != nil && test.code == 500:
				requireReplayed(t, again, 500, "answer")
			case test.runs == 1:
				requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
			default:
				require.Equal(t, test.code, again.status)
				require.Empty(t, again.get("Idempotency-Replayed"))
			}
			require.Equal(t, test.runs, runs.Load())
		})
	}
}

func TestSetTTLWhileAResponseStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		var runs atomic.Int32
		h := guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			op, _ := fasthttpidem.FromContext(ctx)
			ctx.SetBodyStreamWriter(func(*bufio.Writer) { op.SetTTL(time.Minute) })
		}))
		call(t, h, "k", "")
		time.Sleep(time.Minute - time.Nanosecond)
		requireReplayed(t, call(t, h, "k", ""), 200, "")
		time.Sleep(time.Nanosecond)
		call(t, h, "k", "")
		require.EqualValues(t, 2, runs.Load())
	})
}

// What a middleware outside does with the response while it streams is not the result's, as it is not of one that is bytes.
func TestMiddlewareOutsideOfAStream(t *testing.T) {
	inner := guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("Location", "/payments/1")
		streaming(201, parts("paid"))(ctx)
	})
	trace := "1"
	server := startServer(t, func(ctx *fasthttp.RequestCtx) {
		inner(ctx)
		ctx.Response.Header.Set("X-Took", trace)
		ctx.Response.Header.Del("Location")
		ctx.SetStatusCode(http.StatusAccepted)
	})
	first := post(t, server, "k", "")
	require.Equal(t, 202, first.status)
	require.Equal(t, "1", first.get("X-Took"))

	again := call(t, inner, "k", "")
	requireReplayed(t, again, 201, "paid")
	require.Equal(t, "/payments/1", again.get("Location"))
	require.Empty(t, again.get("X-Took"))
}

// A middleware outside that answers something else does not end the operation either.
func TestStreamThatIsThrownAway(t *testing.T) {
	inner := guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("Location", "/payments/1")
		streaming(201, parts("paid ", "for"))(ctx)
	})
	server := startServer(t, func(ctx *fasthttp.RequestCtx) {
		inner(ctx)
		ctx.Error("no", http.StatusInternalServerError)
	})
	first := post(t, server, "k", "")
	require.Equal(t, 500, first.status)
	require.Equal(t, "no", first.body)
	again := call(t, inner, "k", "")
	requireReplayed(t, again, 201, "paid for")
	require.Equal(t, "/payments/1", again.get("Location"))
}

// unzip returns the text of a body that is compressed, and says so.
func unzip(t *testing.T, a opened) string {
	t.Helper()
	require.Equal(t, "gzip", a.header.Get("Content-Encoding"))
	z, err := gzip.NewReader(a)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(text)
}

// TestStreamIsCompressedOutside: the record is of what the handler wrote, which each answer compresses for its client.
func TestStreamIsCompressedOutside(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, fasthttp.CompressHandler(guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		streaming(200, parts("one ", strings.Repeat("two ", 100)))(ctx)
		ctx.SetContentType("text/plain")
	}))))
	want := "one " + strings.Repeat("two ", 100)
	w := server.dial(t)
	require.Equal(t, want, unzip(t, w.open("k", "", "Accept-Encoding", "gzip")))
	plain := post(t, server, "k", "")
	requireReplayed(t, plain, 200, want)
	require.Empty(t, plain.get("Content-Encoding"))
	require.Equal(t, want, unzip(t, w.open("k", "", "Accept-Encoding", "gzip")))
	require.EqualValues(t, 1, runs.Load())
}

// TestClientThatLeavesACompressedStream: there a second goroutine reads the stream, while the server closes it.
func TestClientThatLeavesACompressedStream(t *testing.T) {
	const rounds = 20
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "event %d\n", i)
	}
	left := make([]chan struct{}, rounds)
	server := startServer(t, fasthttp.CompressHandler(guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		gone := left[len(ctx.Request.Body())]
		ctx.SetContentType("text/plain")
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			for i, line := range strings.SplitAfter(want.String(), "\n") {
				_, _ = w.WriteString(line)
				_ = w.Flush()
				if i == 0 {
					<-gone
				}
			}
		})
	})))
	for i := range rounds {
		left[i] = make(chan struct{})
		key, body := fmt.Sprint("k", i), strings.Repeat("x", i)
		w := server.dial(t)
		w.open(key, body, "Accept-Encoding", "gzip")
		require.NoError(t, w.Conn.(*net.TCPConn).SetLinger(0))
		require.NoError(t, w.Close())
		close(left[i])
		again := postUntilDone(t, server, key, body)
		require.Equal(t, "true", again.get("Idempotency-Replayed"), again.body)
		require.EqualValues(t, want.Len(), again.length)
		require.Equal(t, want.String()[:4000], again.body[:4000])
	}
}

func TestNothingIsLeftOfStreams(t *testing.T) {
	server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) { streaming(200, parts("one"))(ctx) }))
	w := server.dial(t)
	w.sendRaw(postText("first", ""))
	require.Equal(t, "one", w.answer().body)
	before := runtime.NumGoroutine()
	for i := range 100 {
		w.sendRaw(postText(fmt.Sprint(i), ""))
		require.Equal(t, "one", w.answer().body)
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= before }, "the end of all goroutines")
}
