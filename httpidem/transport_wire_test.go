package httpidem_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A visitLog is a server's memory in its simplest form: which key came with which bodies.
type visitLog struct {
	mu       sync.Mutex
	requests int
	bodies   map[string][]string
}

// note reads the request and returns how often its key has come, this time included.
func (l *visitLog) note(r *http.Request) int {
	body, _ := io.ReadAll(r.Body)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bodies == nil {
		l.bodies = map[string][]string{}
	}
	key := r.Header.Get("Idempotency-Key")
	l.bodies[key] = append(l.bodies[key], string(body))
	l.requests++
	return len(l.bodies[key])
}

// requireOne asserts that there was one key, that came n times with the body.
func (l *visitLog) requireOne(t *testing.T, n int, body string) (key string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(t, l.bodies, 1)
	for k, bodies := range l.bodies {
		require.NotEmpty(t, k)
		require.Len(t, bodies, n)
		for _, b := range bodies {
			require.Equal(t, body, b)
		}
		key = k
	}
	return key
}

// serveClient starts a server of the protocol, "HTTP/1.1" or "HTTP/2.0", and returns a client of its own whose
// Transport retries with little delay.
func serveClient(t *testing.T, protocol string, h http.HandlerFunc) (*httptest.Server, *http.Client) {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Proto != protocol {
			http.Error(w, r.Proto, http.StatusHTTPVersionNotSupported)
			return
		}
		h(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if srv.EnableHTTP2 = protocol == "HTTP/2.0"; srv.EnableHTTP2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv, &http.Client{Transport: &httpidem.Transport{Base: srv.Client().Transport, MaxBackoff: time.Millisecond}}
}

func transportOf(t *testing.T, client *http.Client) *httpidem.Transport {
	t.Helper()
	tr, ok := client.Transport.(*httpidem.Transport)
	require.True(t, ok)
	return tr
}

var wireProtocols = []string{"HTTP/1.1", "HTTP/2.0"}

func TestTransportOverTheWire(t *testing.T) {
	for _, protocol := range wireProtocols {
		t.Run(protocol, func(t *testing.T) {
			t.Run("server fails twice", func(t *testing.T) {
				var l visitLog
				srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(map[bool]int{true: 503, false: 201}[l.note(r) < 3])
				})
				resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("amount=5")))
				require.NoError(t, err)
				require.Equal(t, 201, resp.status)
				l.requireOne(t, 3, "amount=5")
			})
			t.Run("connection is cut after the request ran", func(t *testing.T) {
				var l visitLog
				srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
					if l.note(r) == 1 {
						panic(http.ErrAbortHandler) // closes the connection, or resets the stream
					}
					_, _ = io.WriteString(w, "done before")
				})
				resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("amount=5")))
				require.NoError(t, err)
				require.Equal(t, "done before", resp.body)
				l.requireOne(t, 2, "amount=5")
			})
			t.Run("connection is cut every time", func(t *testing.T) {
				var l visitLog
				srv, client := serveClient(t, protocol, func(_ http.ResponseWriter, r *http.Request) {
					l.note(r)
					panic(http.ErrAbortHandler)
				})
				_, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("amount=5")))
				retry := asRetryError(t, err)
				require.True(t, retry.MayHaveRun)
				require.Equal(t, 4, retry.Attempts)
				require.Equal(t, l.requireOne(t, 4, "amount=5"), retry.Key)
			})
			t.Run("caller leaves after the request was sent", func(t *testing.T) {
				var l visitLog
				ctx, cancel := context.WithCancel(t.Context())
				srv, client := serveClient(t, protocol, func(_ http.ResponseWriter, r *http.Request) {
					if l.note(r) == 1 {
						cancel()
						<-r.Context().Done()
					}
				})
				_, err := trip(client.Do, newPost(ctx, t, srv.URL, onlyReader("amount=5")))
				require.ErrorIs(t, err, context.Canceled)
				retry := asRetryError(t, err)
				require.True(t, retry.MayHaveRun)

				// Its key serves to send it again.
				again := httpidem.WithKey(t.Context(), retry.Key)
				resp, err := trip(client.Do, newPost(again, t, srv.URL, onlyReader("amount=5")))
				require.NoError(t, err)
				require.Empty(t, resp.body)
				require.Equal(t, retry.Key, l.requireOne(t, 2, "amount=5"))
			})
			t.Run("conflict is handed back whole", func(t *testing.T) {
				body := `{"code":"outcome_unknown","detail":"` + strings.Repeat("x", 100_000) + `"}`
				srv, client := serveClient(t, protocol, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(http.StatusConflict)
					_, _ = io.WriteString(w, body)
				})
				resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, nil))
				require.NoError(t, err)
				require.Equal(t, 409, resp.status)
				require.Equal(t, body, resp.body)
			})
			t.Run("conflict that stalls is handed back", func(t *testing.T) { testStalledConflict(t, protocol) })
			t.Run("long body streams through", func(t *testing.T) { testStreams(t, protocol) })
			t.Run("length and trailers arrive", func(t *testing.T) { testLength(t, protocol) })
			t.Run("many at once", func(t *testing.T) { testMany(t, protocol) })
		})
	}
}

func newPost(ctx context.Context, t *testing.T, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	require.NoError(t, err)
	return req
}

// testStalledConflict has a server that sends half of a problem document, and the rest when the caller has
// the answer, or never.
func testStalledConflict(t *testing.T, protocol string) {
	t.Helper()
	answered := make(chan bool)
	srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":`)
		flush(w)
		select {
		case <-answered:
			_, _ = io.WriteString(w, `"in_progress"}`)
		case <-r.Context().Done(): // by the closing of the body, or the server would not end
		}
	})
	tr := transportOf(t, client)
	tr.AttemptTimeout = time.Minute
	for _, ends := range []bool{true, false} {
		resp, err := client.Do(newPost(t.Context(), t, srv.URL, nil))
		require.NoError(t, err)
		require.Equal(t, 409, resp.StatusCode)
		if ends {
			answered <- true
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.JSONEq(t, `{"code":"in_progress"}`, string(body))
		}
		require.NoError(t, resp.Body.Close())
	}
}

// testStreams sends a body whose second half is written when the server has read the first.
func testStreams(t *testing.T, protocol string) {
	t.Helper()
	const half = 4 << 20
	arrived := make(chan struct{})
	srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.CopyN(io.Discard, r.Body, half)
		close(arrived)
		m, _ := io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable) // would be repeated if the body could
		_, _ = fmt.Fprint(w, n+m)
	})
	body, w := io.Pipe()
	go func() {
		block := make([]byte, half)
		_, _ = w.Write(block)
		<-arrived
		_, _ = w.Write(block)
		_ = w.Close()
	}()
	resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, body))
	require.NoError(t, err)
	require.Equal(t, 503, resp.status)
	require.Equal(t, fmt.Sprint(2*half), resp.body)
}

func testLength(t *testing.T, protocol string) {
	t.Helper()
	var seen []string
	srv, client := serveClient(t, protocol, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen = append(seen, fmt.Sprintf("%d%s", r.ContentLength, r.Trailer.Get("X-Sum")))
	})
	withTrailer := newPost(t.Context(), t, srv.URL, onlyReader("hello"))
	withTrailer.Trailer = http.Header{"X-Sum": {"5d41"}}
	for _, req := range []*http.Request{
		newPost(t.Context(), t, srv.URL, onlyReader("hello")),
		newPost(t.Context(), t, srv.URL, onlyReader("")),
		newPost(t.Context(), t, srv.URL, nil),
		withTrailer,
	} {
		resp, err := trip(client.Do, req)
		require.NoError(t, err)
		require.Empty(t, resp.body)
	}
	require.Equal(t, []string{"5", "0", "0", "-15d41"}, seen)
}

// testMany has one Transport used by many goroutines while every other request fails.
func testMany(t *testing.T, protocol string) {
	t.Helper()
	var l visitLog
	var flip atomic.Int64
	srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
		l.note(r)
		if flip.Add(1)%2 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	// Half of what is under way fails, so that 4 attempts would not be enough for all of them.
	transportOf(t, client).MaxAttempts = 1000
	const callers, requests = 16, 20
	errs := make(chan error, callers)
	for caller := range callers {
		go func() {
			for i := range requests {
				text := fmt.Sprint(caller, "/", i)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, onlyReader(text))
				if err != nil {
					errs <- err
					return
				}
				resp, err := trip(client.Do, req)
				if err == nil && resp.status != http.StatusOK {
					err = fmt.Errorf("status %d", resp.status)
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		require.NoError(t, <-errs)
	}
	require.Len(t, l.bodies, callers*requests, "one key each")
	for _, bodies := range l.bodies {
		for _, b := range bodies {
			require.Equal(t, bodies[0], b)
		}
	}
}

func TestTransportKnowsWhatNeverArrived(t *testing.T) {
	t.Run("connection refused", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		client := &http.Client{Transport: &httpidem.Transport{Base: &http.Transport{}, MaxBackoff: 1}}
		_, err = trip(client.Do, newPost(t.Context(), t, "http://"+ln.Addr().String(), onlyReader("x")))
		retry := asRetryError(t, err)
		require.False(t, retry.MayHaveRun)
		require.Equal(t, 4, retry.Attempts)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
	})
	t.Run("certificate not trusted", func(t *testing.T) {
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		defer srv.Close()
		client := &http.Client{Transport: &httpidem.Transport{Base: &http.Transport{}}}
		_, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("x")))
		retry := asRetryError(t, err)
		require.False(t, retry.MayHaveRun)
		require.Equal(t, 1, retry.Attempts, "no repetition makes it trusted")
	})
	t.Run("refused after an attempt that was cut", func(t *testing.T) {
		var stop func() error
		srv, client := serveClient(t, "HTTP/1.1", func(http.ResponseWriter, *http.Request) {
			_ = stop()
			panic(http.ErrAbortHandler)
		})
		stop = srv.Listener.Close
		_, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("x")))
		require.ErrorContains(t, err, "refused")
		require.True(t, asRetryError(t, err).MayHaveRun, "the first attempt may")
	})
}

// TestTransportSurvivesADeadKeepAlive has net/http itself send a request again, because the connection
// that it had kept dies under it. The Transport does not see that, and need not.
func TestTransportSurvivesADeadKeepAlive(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	var l visitLog
	go serveRaw(ln, func(conn, request int, r *http.Request) string {
		const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
		if conn == 1 && request == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			return ok
		}
		if l.note(r) == 1 {
			return ""
		}
		return ok
	})
	var calls atomic.Int64
	std := &http.Transport{}
	defer std.CloseIdleConnections()
	client := &http.Client{Transport: &httpidem.Transport{MaxBackoff: 1, Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		return std.RoundTrip(r)
	})}}
	for i := range 2 {
		resp, err := trip(client.Do, newPost(t.Context(), t, "http://"+ln.Addr().String(), onlyReader(fmt.Sprint("request ", i))))
		require.NoError(t, err)
		require.Empty(t, resp.body)
	}
	l.requireOne(t, 2, "request 1")
	require.EqualValues(t, 2, calls.Load())
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// serveRaw answers HTTP/1.1 by hand, and closes a connection when there is no answer.
func serveRaw(ln net.Listener, answer func(conn, request int, r *http.Request) string) {
	for n := 1; ; n++ {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(conn)
		for request := 1; ; request++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				break
			}
			text := answer(n, request, r)
			if text == "" {
				break
			}
			_, _ = io.WriteString(conn, text)
		}
		_ = conn.Close()
	}
}
