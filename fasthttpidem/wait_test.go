package fasthttpidem_test

import (
	"bufio"
	"context"
	"io"
	"log"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// serve starts a server in a bubble, and returns it with a function that sends a request with the key. A request without a
// server can't wait there: whether that is shut down it learns from something outside of the bubble.
func serve(t *testing.T, h fasthttp.RequestHandler) (*fasthttp.Server, func(key, body string) answer) {
	t.Helper()
	server := &fasthttp.Server{Handler: h, Logger: log.New(io.Discard, "", 0), MaxIdleWorkerDuration: time.Second}
	listener := fasthttputil.NewInmemoryListener()
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	synctest.Wait()
	t.Cleanup(func() {
		check(t, server.Shutdown())
		check(t, <-served)
		time.Sleep(server.MaxIdleWorkerDuration + time.Second) // until what looks after the server's goroutines looks again
	})
	return server, func(key, body string) answer {
		conn, err := listener.Dial()
		if err != nil {
			t.Error(err)
			return answer{}
		}
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, postText(key, body))
		check(t, err)
		return readAnswer(bufio.NewReaderSize(conn, 64<<10))
	}
}

// slow returns a handler that takes a while.
func slow(runs *atomic.Int32, d time.Duration, code int) fasthttp.RequestHandler {
	return counted(runs, func(ctx *fasthttp.RequestCtx) {
		time.Sleep(d)
		ctx.SetStatusCode(code)
	})
}

func TestWait(t *testing.T) {
	for name, test := range map[string]struct {
		conf  fasthttpidem.Config
		code  int // of the handler, which takes 5 seconds
		took  time.Duration
		runs  int32
		check func(*testing.T, answer)
	}{
		"not at all by default": {code: 201, runs: 1, check: func(t *testing.T, second answer) {
			requireProblem(t, second, 409, httpidem.CodeInProgress)
			require.Equal(t, "30", second.get("Retry-After"))
		}},
		"until the first request is answered": {conf: fasthttpidem.Config{Wait: time.Minute}, code: 201, took: 5 * time.Second, runs: 1, check: func(t *testing.T, second answer) {
			requireReplayed(t, second, 201, "")
		}},
		"as long as allowed": {conf: fasthttpidem.Config{Wait: 2 * time.Second}, code: 201, took: 2 * time.Second, runs: 1, check: func(t *testing.T, second answer) {
			requireProblem(t, second, 409, httpidem.CodeInProgress)
			require.Equal(t, "28", second.get("Retry-After"), "what is left now, not when the wait began")
		}},
		"and run when the key is released": {conf: fasthttpidem.Config{Wait: time.Minute}, code: 503, took: 10 * time.Second, runs: 2, check: func(t *testing.T, second answer) {
			require.Equal(t, 503, second.status)
			require.Empty(t, second.get("Idempotency-Replayed"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var runs atomic.Int32
				_, send := serve(t, guardWith(t, newFaultyStore(t, idem.Config{}), test.conf)(slow(&runs, 5*time.Second, test.code)))
				done := make(chan answer)
				go func() { done <- send("k", "") }()
				synctest.Wait()
				start := time.Now()
				second := send("k", "")
				require.Equal(t, test.took, time.Since(start))
				test.check(t, second)
				require.Equal(t, test.code, (<-done).status)
				require.Equal(t, test.runs, runs.Load())
			})
		})
	}
}

// Who has been given up, by a timeout around the middleware for instance, must not get the claim any more.
func TestEndOfTheContextEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs atomic.Int32
		conf := fasthttpidem.Config{Wait: time.Minute, Context: func(*fasthttp.RequestCtx) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			t.Cleanup(cancel)
			return ctx
		}}
		_, send := serve(t, guardWith(t, newFaultyStore(t, idem.Config{}), conf)(slow(&runs, 5*time.Second, 503)))
		done := make(chan answer)
		go func() { done <- send("k", "") }()
		synctest.Wait()
		start := time.Now()
		requireProblem(t, send("k", ""), 409, httpidem.CodeInProgress)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Equal(t, 503, (<-done).status)
		require.EqualValues(t, 1, runs.Load())
	})
}

func TestOtherPayloadDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs atomic.Int32
		_, send := serve(t, guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{Wait: time.Minute})(slow(&runs, time.Second, 201)))
		done := make(chan answer)
		go func() { done <- send("k", "a") }()
		synctest.Wait()
		start := time.Now()
		requireProblem(t, send("k", "b"), 422, httpidem.CodeKeyReused)
		require.Zero(t, time.Since(start))
		<-done
	})
}

func TestStoreThatClosesWhileADuplicateWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		engine := newEngine(t, idem.Config{})
		var runs atomic.Int32
		_, send := serve(t, guardWith(t, engine, fasthttpidem.Config{Wait: time.Minute})(slow(&runs, 5*time.Second, 201)))
		owner, waiter := make(chan answer), make(chan answer)
		go func() { owner <- send("k", "") }()
		synctest.Wait()
		go func() { waiter <- send("k", "") }()
		synctest.Wait()
		require.NoError(t, engine.Close())
		requireProblem(t, <-waiter, 503, httpidem.CodeStoreUnavailable)
		requireProblem(t, <-owner, 503, httpidem.CodeStoreUnavailable)
		require.EqualValues(t, 1, runs.Load())
	})
}

// TestShutdownEndsTheWait: a server that is shut down lets its handlers end, and those who wait for them give up at once.
func TestShutdownEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const waiters = 20
		engine := newEngine(t, idem.Config{})
		var runs atomic.Int32
		server, send := serve(t, guardWith(t, engine, fasthttpidem.Config{Wait: time.Minute})(slow(&runs, 5*time.Second, 201)))
		owner, waiter := make(chan answer), make(chan answer)
		go func() { owner <- send("k", "") }()
		synctest.Wait()
		for range waiters {
			go func() { waiter <- send("k", "") }()
		}
		synctest.Wait()
		require.Equal(t, waiters, engine.Stats().Waiting)
		start := time.Now()
		down := make(chan error)
		go func() { down <- server.Shutdown() }()
		for range waiters {
			requireProblem(t, <-waiter, 409, httpidem.CodeInProgress)
		}
		require.Zero(t, time.Since(start))
		require.Zero(t, engine.Stats().Waiting)
		require.Equal(t, 201, (<-owner).status)
		require.NoError(t, <-down)
		require.EqualValues(t, 1, runs.Load())
	})
}

// A wait that is over because the server is shut down tells of the claim as it is by then.
func TestDuplicateIsToldOfTheLeaseThatWasExtended(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs atomic.Int32
		_, send := serve(t, guardWith(t, newEngine(t, idem.Config{Lease: 9 * time.Second}), fasthttpidem.Config{Wait: 7 * time.Second})(slow(&runs, 20*time.Second, 201)))
		done := make(chan answer)
		go func() { done <- send("k", "") }()
		synctest.Wait()
		second := send("k", "")
		requireProblem(t, second, http.StatusConflict, httpidem.CodeInProgress)
		require.Equal(t, "8", second.get("Retry-After"), "extended a second ago")
		<-done
	})
}
