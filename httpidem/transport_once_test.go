package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// The tests of this file have a Transport talk to the middleware, through connections that fail.

// onceOn puts the middleware with the store in front of h.
func onceOn(t *testing.T, store idem.Store, h http.HandlerFunc) http.Handler {
	t.Helper()
	idempotent, err := httpidem.New(store, httpidem.Config{Scope: httpidem.SharedScope})
	require.NoError(t, err)
	return idempotent(h)
}

func onceEngine(t *testing.T) *idem.Engine {
	t.Helper()
	engine, err := idem.New(idem.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	return engine
}

func TestTransportAndMiddlewareRunItOnce(t *testing.T) {
	for _, protocol := range wireProtocols {
		for _, reused := range []bool{false, true} {
			t.Run(fmt.Sprintf("when the answer is lost, %s, connection reused %t", protocol, reused), func(t *testing.T) {
				testLostAnswer(t, protocol, reused)
			})
		}
		t.Run("when the caller leaves and comes back, "+protocol, func(t *testing.T) { testComesBack(t, protocol) })
	}
}

// testLostAnswer cuts the connection when the operation is done and recorded. On a connection that was
// used before, net/http sends the request again itself.
func testLostAnswer(t *testing.T, protocol string, reused bool) {
	t.Helper()
	var runs, requests atomic.Int64
	once := onceOn(t, onceEngine(t), func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "run %d of %s", runs.Add(1), body)
	})
	srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && requests.Add(1) == 1 {
			once.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		once.ServeHTTP(w, r)
	})
	if reused {
		get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		require.NoError(t, err)
		resp, err := trip(client.Do, get)
		require.NoError(t, err)
		require.Equal(t, "run 1 of ", resp.body)
		runs.Store(0)
	}
	resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("amount=5")))
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resp.status)
	require.Equal(t, "true", resp.header.Get("Idempotency-Replayed"))
	require.Equal(t, "run 1 of amount=5", resp.body)
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, 2, requests.Load())
}

// testComesBack cancels a request while its operation runs, and repeats it with the key of the error.
func testComesBack(t *testing.T, protocol string) {
	t.Helper()
	var runs atomic.Int64
	ctx, leave := context.WithCancel(t.Context())
	finished, finish := context.WithCancel(t.Context())
	once := onceOn(t, onceEngine(t), func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			leave()
			<-finished.Done()
		}
		_, _ = io.WriteString(w, "charged")
	})
	var conflicts atomic.Int64
	srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		once.ServeHTTP(rec, r)
		if rec.Code == http.StatusConflict && conflicts.Add(1) == 2 {
			finish()
		}
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
	t.Cleanup(finish) // or a failure would leave the server waiting for the handler
	tr := transportOf(t, client)
	tr.MaxAttempts, tr.MaxRetryAfter = 1000, time.Millisecond

	_, err := trip(client.Do, newPost(ctx, t, srv.URL, onlyReader("amount=5")))
	require.ErrorIs(t, err, context.Canceled)
	retry := asRetryError(t, err)
	require.True(t, retry.MayHaveRun)

	again := httpidem.WithKey(t.Context(), retry.Key)
	resp, err := trip(client.Do, newPost(again, t, srv.URL, onlyReader("amount=5")))
	require.NoError(t, err)
	require.Equal(t, "true", resp.header.Get("Idempotency-Replayed"))
	require.Equal(t, "charged", resp.body)
	require.EqualValues(t, 1, runs.Load())
}

// A slowStore takes 50 ms for each call, as one far away would.
type slowStore struct{ idem.Store }

func (slowStore) delay() { <-time.NewTimer(50 * time.Millisecond).C }

func (s slowStore) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	s.delay()
	defer s.delay() // there and back, so that answers are out of date when they arrive
	return s.Store.Begin(ctx, req)
}

func (s slowStore) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	s.delay()
	return s.Store.Complete(ctx, c, resp)
}

func (s slowStore) Abandon(ctx context.Context, c idem.Claim) error {
	s.delay()
	return s.Store.Abandon(ctx, c)
}

func (s slowStore) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	s.delay()
	return s.Store.Extend(ctx, c, lease)
}

// storm sends each of a number of requests 12 times at once, through one Transport, to a server with a
// slow store that loses every tenth answer. Every sender must get the answer of the only run.
func storm(t *testing.T, keys int) {
	t.Helper()
	const duplicates, connections = 12, 256
	var answers atomic.Int64
	runs := make([]atomic.Int64, keys) // by the number in the request
	once := onceOn(t, slowStore{onceEngine(t)}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		i, _ := strconv.Atoi(string(body))
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "run %d of %d", runs[i].Add(1), i)
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answers.Add(1)%10 == 0 {
			once.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		once.ServeHTTP(w, r)
	}))
	defer srv.Close()
	base := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: &httpidem.Transport{Base: base, MaxAttempts: 1000, MaxRetryAfter: 200 * time.Millisecond}}

	errs := make(chan error, keys*duplicates)
	for i := range keys * duplicates {
		go func() {
			text := strconv.Itoa(i % keys)
			errs <- pay(httpidem.WithKey(t.Context(), "key-"+text), client, srv.URL, text)
		}()
	}
	for range keys * duplicates {
		require.NoError(t, <-errs)
	}
	for i := range runs {
		require.EqualValues(t, 1, runs[i].Load(), "request %d", i)
	}
}

// pay sends one request and checks that the answer is that of its first run.
func pay(ctx context.Context, client *http.Client, url, text string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := trip(client.Do, req)
	if err != nil {
		return err
	}
	if resp.status != http.StatusCreated || resp.body != "run 1 of "+text {
		return fmt.Errorf("status %d: %q", resp.status, resp.body)
	}
	return nil
}

func TestTransportStorm(t *testing.T) { storm(t, 50) }

func TestHeavyTransportStorm(t *testing.T) { storm(t, 1000) }
