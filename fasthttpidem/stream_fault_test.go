package fasthttpidem_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
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

// A source is a stream of a handler's own, which counts how often it is closed.
type source struct {
	io.Reader
	closed atomic.Int32
	onEnd  func()
}

func (s *source) Close() error {
	s.closed.Add(1)
	if s.onEnd != nil {
		s.onEnd()
	}
	return nil
}

// streamed returns a handler that answers with the stream, which does not say how long it is.
func streamed(code int, body io.Reader) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(code)
		ctx.SetBodyStream(body, -1)
	}
}

// broken is a reader that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("no more") }

func TestStreamThatFails(t *testing.T) {
	for name, size := range map[string]int{"of unknown length": -1, "of known length": 100} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				ctx.SetStatusCode(201)
				ctx.SetBodyStream(io.MultiReader(strings.NewReader("half"), broken{}), size)
			})))
			first := post(t, server, "k", "")
			require.True(t, first.failed, "it must not look as if it was complete")
			again := postUntilDone(t, server, "k", "")
			members := requireProblem(t, again, 410, httpidem.CodeResponseNotRetained)
			require.EqualValues(t, 201, members["original_status"])
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// panicking is a reader that does, whenever it is called.
type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("no") }

// sendsAsAServer sends a response as fasthttp's server does, which recovers while it sends a stream, and not when it closes
// one.
func sendsAsAServer(t *testing.T, h fasthttp.RequestHandler, key string) error {
	t.Helper()
	var ctx fasthttp.RequestCtx
	ctx.Init(newRequest(key, ""), nil, log.New(io.Discard, "", 0))
	require.NotPanics(t, func() { h(&ctx) })
	err := ctx.Response.Write(bufio.NewWriter(io.Discard))
	require.NotPanics(t, ctx.Response.Reset)
	return err
}

// TestStreamThatPanics: without the middleware that costs a server the connection, and not its life.
func TestStreamThatPanics(t *testing.T) {
	for name, size := range map[string]int{"of unknown length": -1, "of known length": 100} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			body := &source{Reader: io.MultiReader(strings.NewReader("half"), panicking{})}
			h := guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyStream(body, size) }))
			require.Error(t, sendsAsAServer(t, h, "k"))
			require.EqualValues(t, 1, body.closed.Load())
			again := call(t, h, "k", "")
			require.Contains(t, []int{409, 410}, again.status)
			require.Empty(t, again.get("Retry-After"), "nobody runs it any more")
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// A function of the Config that panics does so when all of the stream is sent but its end.
func TestPanicOfTheConfigBreaksAStream(t *testing.T) {
	for name, conf := range map[string]fasthttpidem.Config{
		"Policy":     {Policy: func(int) httpidem.Action { panic("no") }},
		"Redact":     {Redact: func(*fasthttp.Response) { panic("no") }},
		"KeepHeader": {KeepHeader: func(string) bool { panic("no") }},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			body := &source{Reader: strings.NewReader("answer")}
			h := guard(t, conf)(counted(&runs, streamed(200, body)))
			require.Error(t, sendsAsAServer(t, h, "k"))
			require.EqualValues(t, 1, body.closed.Load())
			requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

func TestCompleteOfAStreamFails(t *testing.T) {
	t.Run("for ever: the client does not take the answer for complete", func(t *testing.T) {
		for _, text := range []string{"answer", strings.Repeat("long answer ", 10_000), ""} {
			var runs atomic.Int32
			store := newFaultyStore(t, idem.Config{})
			store.OnComplete = func(*idem.Response) error { return idem.ErrClosed }
			store.OnAbandon = func() error { t.Error("the key must not be released"); return nil }
			server := startServer(t, guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				streaming(201, parts(text))(ctx)
			})))
			require.True(t, post(t, server, "k", "").failed)
			requireProblem(t, post(t, server, "k", ""), 409, httpidem.CodeInProgress)
			require.EqualValues(t, 1, runs.Load())
		}
	})
	t.Run("once, and is tried again", func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		var tries atomic.Int32
		store.OnComplete = func(*idem.Response) error {
			if tries.Add(1) == 1 {
				return httpcases.ErrDown
			}
			return nil
		}
		server := startServer(t, guardWith(t, store, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
			streaming(201, parts("answer"))(ctx)
		}))
		first := post(t, server, "k", "")
		require.False(t, first.failed)
		require.Equal(t, "answer", first.body)
		requireReplayed(t, post(t, server, "k", ""), 201, "answer")
	})
	t.Run("because the store keeps less: the client gets the answer, a retry does not run it", func(t *testing.T) {
		server := startServer(t, guardWith(t, newEngine(t, idem.Config{MaxResponseBytes: 10}), fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
			streaming(201, parts("a longer answer"))(ctx)
		}))
		first := post(t, server, "k", "")
		require.False(t, first.failed)
		require.Equal(t, "a longer answer", first.body)
		requireProblem(t, post(t, server, "k", ""), 410, httpidem.CodeResponseNotRetained)
	})
}

func TestMaxRunCutsAStream(t *testing.T) {
	var runs atomic.Int32
	ended := make(chan error, 1)
	server := startServer(t, guard(t, fasthttpidem.Config{MaxRun: 200 * time.Millisecond})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStreamWriter(ticking(ended))
	})))
	first := post(t, server, "k", "")
	require.Error(t, <-ended)
	require.True(t, first.failed, "it must not look as if it was complete")
	again := postUntilDone(t, server, "k", "")
	requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
	require.Empty(t, again.get("Retry-After"))
	require.EqualValues(t, 1, runs.Load())
}

// TestStreamThatEndsAsItIsCut: most streams end in an orderly way when they are closed, which makes no answer of what
// they were about to say.
func TestStreamThatEndsAsItIsCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		recorded := make(chan struct{})
		store.OnComplete = func(*idem.Response) error { close(recorded); return nil }
		r, w := io.Pipe()
		body := &source{Reader: io.MultiReader(strings.NewReader("half"), r), onEnd: func() {
			_ = w.Close()
			select {
			case <-recorded: // by the reader, which is told of the end
			case <-time.After(time.Second):
			}
		}}
		h := guardWith(t, store, fasthttpidem.Config{MaxRun: time.Minute})(streamed(201, body))
		err := sendsAsAServer(t, h, "k")
		synctest.Wait()
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
		require.EqualValues(t, 1, body.closed.Load())
		require.Error(t, err, "it must not look as if it was complete")
	})
}

func TestLostClaimCutsAStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		var runs atomic.Int32
		var h fasthttp.RequestHandler
		h = guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			if runs.Load() > 1 {
				ctx.SetBodyString("second")
				return
			}
			op, _ := fasthttpidem.FromContext(ctx)
			ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
				_, err := store.Store.(idem.Inspector).Forget(t.Context(), "", "k")
				check(t, err)
				assert.Equal(t, "second", call(t, h, "k", "").body)
				<-op.Context().Done()
				assert.Equal(t, idem.ErrClaimLost, context.Cause(op.Context()))
				synctest.Wait()
				_, _ = w.WriteString("first")
				assert.Error(t, w.Flush())
			})
		}))
		require.Error(t, sendsAsAServer(t, h, "k"), "the answer is not the key's")
		requireReplayed(t, call(t, h, "k", ""), 200, "second")
		require.EqualValues(t, 2, runs.Load())
	})
}

func TestStreamIsClosedOnce(t *testing.T) {
	for name, send := range map[string]func(*testing.T, *testServer, chan struct{}){
		"at its end": func(t *testing.T, s *testServer, proceed chan struct{}) {
			close(proceed)
			require.Equal(t, "onetwo", post(t, s, "k", "").body)
		},
		"when its client has left": func(t *testing.T, s *testServer, proceed chan struct{}) {
			w := s.dial(t)
			next(t, w.open("k", ""), "one")
			require.NoError(t, w.Close())
			close(proceed)
		},
		"when it is cut": func(t *testing.T, s *testServer, proceed chan struct{}) {
			post(t, s, "k", "")
			close(proceed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			proceed := make(chan struct{})
			r, w := io.Pipe()
			body := &source{Reader: r, onEnd: sync.OnceFunc(func() { _ = r.Close() })}
			var written sync.WaitGroup
			written.Go(func() {
				_, _ = io.WriteString(w, "one")
				<-proceed
				_, _ = io.WriteString(w, "two")
				_ = w.Close()
			})
			server := startServer(t, guard(t, fasthttpidem.Config{MaxRun: time.Second})(streamed(200, body)))
			send(t, server, proceed)
			written.Wait()
			postUntilDone(t, server, "k", "")
			require.NoError(t, server.Shutdown())
			require.EqualValues(t, 1, body.closed.Load())
		})
	}
}

// TestStreamKeepsItsClaim while it lasts, and no longer.
func TestStreamKeepsItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{Lease: 3 * time.Second})
		var extended, runs atomic.Int32
		store.OnExtend = func() error { extended.Add(1); return nil }
		var after func() error
		h := guardWith(t, store, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			after = operation(ctx).Err
			ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
				for i := range 30 {
					check(t, after())
					time.Sleep(time.Second)
					_, _ = fmt.Fprintf(w, "%d,", i)
					_ = w.Flush()
				}
				time.Sleep(time.Second / 2)
			})
		}))
		done := make(chan answer)
		go func() { done <- call(t, h, "k", "") }()
		for range 30 {
			time.Sleep(time.Second)
			requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
		}
		first := <-done
		require.ErrorIs(t, after(), context.Canceled)
		require.EqualValues(t, 30, extended.Load())
		time.Sleep(time.Minute)
		require.EqualValues(t, 30, extended.Load(), "after the end of the stream")
		requireReplayed(t, call(t, h, "k", ""), http.StatusOK, first.body)
		require.EqualValues(t, 1, runs.Load())
	})
}

// The time that a handler leaves to its stream is what is left of MaxRun.
func TestMaxRunIsForHandlerAndStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		ended := make(chan error, 1)
		h := guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{MaxRun: time.Minute})(func(ctx *fasthttp.RequestCtx) {
			time.Sleep(50 * time.Second)
			ctx.SetBodyStreamWriter(ticking(ended))
		})
		var ctx fasthttp.RequestCtx
		ctx.Init(newRequest("k", ""), nil, log.New(io.Discard, "", 0))
		h(&ctx) // and nobody reads what it answers with
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeInProgress)
		require.Error(t, <-ended)
		require.Equal(t, time.Minute, time.Since(start))
		synctest.Wait()
		requireProblem(t, call(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
	})
}

// TestStreamIsCompressedInside: there it is part of the result, and as easily cut.
func TestStreamIsCompressedInside(t *testing.T) {
	var runs atomic.Int32
	ended := make(chan error, 1)
	want := strings.Repeat("one two ", 100)
	server := startServer(t, guard(t, fasthttpidem.Config{MaxRun: time.Second})(fasthttp.CompressHandler(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		streaming(200, parts(want))(ctx)
		if string(ctx.Request.Body()) == "for ever" {
			ctx.SetBodyStreamWriter(ticking(ended))
		}
		ctx.SetContentType("text/plain")
	}))))
	w := server.dial(t)
	for range 2 {
		require.Equal(t, want, unzip(t, w.open("k", "", "Accept-Encoding", "gzip")))
	}
	require.EqualValues(t, 1, runs.Load())
	first := post(t, server, "endless", "for ever", "Accept-Encoding", "gzip")
	require.Error(t, <-ended)
	requireProblem(t, postUntilDone(t, server, "endless", "for ever"), 409, httpidem.CodeOutcomeUnknown)
	require.True(t, first.failed, "it must not look as if it was complete")
}
