package httpidem_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// eventually calls ok until it is true, for ten seconds at most.
func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		require.False(t, time.Now().After(deadline), "%s did not come to pass", what)
		<-time.After(time.Millisecond)
	}
}

// send sends a request with the key over a connection, and returns status and body.
func send(ctx context.Context, client *http.Client, url, key string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set(httpidem.DefaultHeader, key)
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, string(text), err
}

func TestClientThatLeavesFindsTheResult(t *testing.T) {
	for _, proto := range []string{onlyHTTP1, "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			var runs atomic.Int32
			left, proceed := make(chan struct{}, 1), make(chan struct{})
			var handlerErr error
			inner := guard(t, httpidem.Config{Wait: time.Minute})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if runs.Add(1) > 1 {
					return
				}
				<-proceed
				handlerErr = r.Context().Err() // as a database would find it
				_, _ = w.Write([]byte("paid"))
			}))
			server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				context.AfterFunc(r.Context(), sync.OnceFunc(func() {
					select {
					case left <- struct{}{}:
					default: // the end of a later request
					}
				}))
				inner.ServeHTTP(w, r)
			}), proto)
			client := server.client(t)

			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() {
				_, _, err := send(ctx, client, server.URL, "k")
				gone <- err
			}()
			eventually(t, func() bool { return runs.Load() == 1 }, "the run")
			leave()
			require.ErrorIs(t, <-gone, context.Canceled)
			<-left // the server has noticed
			close(proceed)

			code, body, err := send(t.Context(), client, server.URL, "k")
			require.NoError(t, err)
			require.Equal(t, 200, code)
			require.Equal(t, "paid", body)
			require.NoError(t, handlerErr)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

func TestWait(t *testing.T) {
	// slow returns a handler that takes a while.
	slow := func(runs *int, d time.Duration, code int) http.Handler {
		return counted(runs, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(d)
			w.WriteHeader(code)
		})
	}
	run := func(t *testing.T, conf httpidem.Config, d time.Duration, code int) (runs int, second *httptest.ResponseRecorder, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			h := guardWith(t, store, conf)(slow(&runs, d, code))
			done := make(chan struct{})
			go func() { defer close(done); post(t, h, "k", "") }()
			synctest.Wait()
			start := time.Now()
			second = post(t, h, "k", "")
			took = time.Since(start)
			<-done
		})
		return runs, second, took
	}
	t.Run("not at all by default", func(t *testing.T) {
		runs, second, took := run(t, httpidem.Config{}, time.Second, 201)
		requireProblem(t, second, 409, httpidem.CodeInProgress)
		require.Equal(t, "30", second.Header().Get("Retry-After"))
		require.Zero(t, took)
		require.Equal(t, 1, runs)
	})
	t.Run("until the first request is answered", func(t *testing.T) {
		runs, second, took := run(t, httpidem.Config{Wait: time.Minute}, 5*time.Second, 201)
		requireReplayed(t, second, 201, "")
		require.Equal(t, 5*time.Second, took)
		require.Equal(t, 1, runs)
	})
	t.Run("as long as allowed", func(t *testing.T) {
		runs, second, took := run(t, httpidem.Config{Wait: 2 * time.Second}, 5*time.Second, 201)
		requireProblem(t, second, 409, httpidem.CodeInProgress)
		require.Equal(t, "28", second.Header().Get("Retry-After"), "what is left now, not when the wait began")
		require.Equal(t, 2*time.Second, took)
		require.Equal(t, 1, runs)
	})
	t.Run("and run when the key is released", func(t *testing.T) {
		runs, second, took := run(t, httpidem.Config{Wait: time.Minute}, 5*time.Second, 503)
		require.Equal(t, 503, second.Code)
		require.Empty(t, second.Header().Get("Idempotency-Replayed"))
		require.Equal(t, 10*time.Second, took)
		require.Equal(t, 2, runs)
	})
	t.Run("other payload does not wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			runs := 0
			h := guardWith(t, store, httpidem.Config{Wait: time.Minute})(slow(&runs, time.Second, 201))
			done := make(chan struct{})
			go func() { defer close(done); post(t, h, "k", "a") }()
			synctest.Wait()
			requireProblem(t, post(t, h, "k", "b"), 422, httpidem.CodeKeyReused)
			<-done
		})
	})
	t.Run("client that leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			runs := 0
			h := guardWith(t, store, httpidem.Config{Wait: time.Minute, FailOpen: true})(slow(&runs, 5*time.Second, 201))
			done := make(chan struct{})
			go func() { defer close(done); post(t, h, "k", "") }()
			synctest.Wait()
			client, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			start := time.Now()
			requireProblem(t, postContext(client, h, "k", ""), 409, httpidem.CodeInProgress)
			require.Equal(t, time.Second, time.Since(start))
			<-done
			require.Equal(t, 1, runs)
		})
	})
	t.Run("store that closes meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engine := newEngine(t, idem.Config{})
			runs := 0
			h := guardWith(t, engine, httpidem.Config{Wait: time.Minute})(slow(&runs, 5*time.Second, 201))
			owner, waiter := make(chan int), make(chan int)
			go func() { owner <- post(t, h, "k", "").Code }()
			synctest.Wait()
			go func() { waiter <- post(t, h, "k", "").Code }()
			synctest.Wait()
			require.NoError(t, engine.Close())
			require.Equal(t, 503, <-waiter)
			require.Equal(t, 503, <-owner)
			require.Equal(t, 1, runs)
		})
	})
}

func TestWaiterWhoseClientLeavesGivesItsPlaceBack(t *testing.T) {
	engine := newEngine(t, idem.Config{MaxWaitersPerKey: 1})
	proceed := make(chan struct{})
	runs := 0
	server := startServer(t, guardWith(t, engine, httpidem.Config{Wait: time.Minute})(counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
		<-proceed
		_, _ = w.Write([]byte("paid"))
	})), onlyHTTP1)
	client := server.client(t)
	type result struct {
		body string
		err  error
	}
	start := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() {
			_, body, err := send(ctx, client, server.URL, "k")
			c <- result{body, err}
		}()
		return c
	}
	owner := start(t.Context())
	eventually(t, func() bool { return engine.Stats().InProgress == 1 }, "the claim")
	ctx, leave := context.WithCancel(t.Context())
	first := start(ctx)
	eventually(t, func() bool { return engine.Stats().Waiting == 1 }, "the wait")
	code, _, err := send(t.Context(), client, server.URL, "k")
	require.NoError(t, err)
	require.Equal(t, 409, code, "there is one place only")
	leave()
	require.ErrorIs(t, (<-first).err, context.Canceled)
	eventually(t, func() bool { return engine.Stats().Waiting == 0 }, "the place given back")
	second := start(t.Context())
	eventually(t, func() bool { return engine.Stats().Waiting == 1 }, "the second wait")
	close(proceed)
	require.Equal(t, result{body: "paid"}, <-owner)
	require.Equal(t, result{body: "paid"}, <-second)
	require.Equal(t, 1, runs)
}

func TestShutdownWithWaiters(t *testing.T) {
	const waiters = 20
	engine := newEngine(t, idem.Config{})
	proceed := make(chan struct{})
	var runs atomic.Int32
	server := startServer(t, guardWith(t, engine, httpidem.Config{Wait: time.Minute})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		<-proceed
		_, _ = w.Write([]byte("paid"))
	})), onlyHTTP1)
	client := server.client(t)
	bodies := make(chan string)
	for range waiters + 1 {
		go func() {
			_, body, err := send(t.Context(), client, server.URL, "k")
			if err != nil {
				body = err.Error()
			}
			bodies <- body
		}()
	}
	eventually(t, func() bool { return engine.Stats().Waiting == waiters }, "the wait")
	down := make(chan error)
	go func() { down <- server.Config.Shutdown(t.Context()) }()
	eventually(t, func() bool { // no new connections
		_, _, err := send(t.Context(), server.client(t), server.URL, "k")
		return err != nil
	}, "the shutdown")
	close(proceed)
	for range waiters + 1 {
		require.Equal(t, "paid", <-bodies)
	}
	require.NoError(t, <-down)
	require.EqualValues(t, 1, runs.Load())
}

// TestTransportThatSendsAgain: net/http's own client sends a request with a key again when a connection
// that was idle before turns out to be dead, and nobody tells the caller.
func TestTransportThatSendsAgain(t *testing.T) {
	var runs, arrivals atomic.Int32
	inner := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append(body, " paid"...))
	}))
	server := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return // warms the connection up
		}
		if arrivals.Add(1) > 1 {
			inner.ServeHTTP(w, r)
			return
		}
		// The request runs, and its connection dies before the answer is on it.
		inner.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}), onlyHTTP1)
	client := server.client(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())

	code, body, err := send(t.Context(), client, server.URL, "k")
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Equal(t, "body paid", body)
	require.EqualValues(t, 2, arrivals.Load(), "the client must have sent it twice")
	require.EqualValues(t, 1, runs.Load())
}

// TestOrderOfMiddlewares: what must be asked again for every request belongs around the middleware,
// because a replay ends there.
func TestOrderOfMiddlewares(t *testing.T) {
	type user struct{}
	revoked := map[string]bool{}
	authenticate := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := r.Header.Get("Authorization")
			if name == "" || revoked[name] {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), user{}, name)))
		})
	}
	idempotent := guard(t, httpidem.Config{Scope: func(r *http.Request) (string, error) {
		name, ok := r.Context().Value(user{}).(string)
		if !ok {
			return "", &httpidem.Problem{Status: http.StatusForbidden, Code: "nobody"}
		}
		return name, nil
	}})
	runs := 0
	pay := counted(&runs, status(201, "paid"))

	h := authenticate(idempotent(pay))
	require.Equal(t, 201, post(t, h, "k", "", "Authorization", "ann").Code)
	requireReplayed(t, post(t, h, "k", "", "Authorization", "ann"), 201, "paid")
	revoked["ann"] = true
	require.Equal(t, 403, post(t, h, "k", "", "Authorization", "ann").Code, "the authorisation was revoked between two attempts")
	requireProblem(t, post(t, idempotent(authenticate(pay)), "k", "", "Authorization", "bob"), 403, "nobody")
	require.Equal(t, 1, runs)
}

func TestManyDuplicatesAtOnce(t *testing.T) {
	const keys, duplicates = 20, 12
	runs := make([]atomic.Int32, keys)
	server := startServer(t, guard(t, httpidem.Config{Wait: time.Minute})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := httpidem.FromContext(r.Context())
		runs[op.Claim().Key[0]-'0'].Add(1)
		_, _ = io.WriteString(w, op.Claim().Key)
	})), onlyHTTP1)
	client := server.client(t)
	var all sync.WaitGroup
	wrong := make(chan string, keys*duplicates)
	for i := range keys * duplicates {
		all.Go(func() {
			key := string(rune('0' + i%keys))
			if code, body, err := send(t.Context(), client, server.URL, key); err != nil || code != 200 || body != key {
				wrong <- body
			}
		})
	}
	all.Wait()
	require.Empty(t, wrong)
	for i := range runs {
		require.EqualValues(t, 1, runs[i].Load())
	}
}
