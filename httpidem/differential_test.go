package httpidem_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// TestDifferential serves every handler bare and through the middleware, over real connections. The first
// answer is the same, and so is the replay but for Date and its marker.
//
// A replay knows its length, so it may have a Content-Length where the first answer was flushed in pieces.
func TestDifferential(t *testing.T) {
	cases := slices.Concat(statusCases, headerCases, bodyCases, streamCases, endCases, []handlerCase{proxyCase(t)})
	require.GreaterOrEqual(t, len(cases), 60)
	testDifferential(t, cases)
}

func TestHeavyDifferential(t *testing.T) { testDifferential(t, []handlerCase{streamCase(100)}) }

func testDifferential(t *testing.T, cases []handlerCase) {
	t.Helper()
	for _, proto := range []string{onlyHTTP1, "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			for _, c := range cases {
				if c.only == "" || c.only == proto {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						runDifferential(t, c, proto)
					})
				}
			}
		})
	}
}

// What is not guarded passes as it is, with a key and without: each request runs.
func TestDifferentialOfHead(t *testing.T) {
	for _, proto := range []string{onlyHTTP1, "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			var runs atomic.Int32
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				w.Header().Set("Etag", `"7"`)
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, "what a GET would have begun with")
			})
			mux := http.NewServeMux()
			mux.Handle("/bare", h)
			mux.Handle("/guarded", guard(t, httpidem.Config{})(h))
			server := startServer(t, mux, proto)
			bare := exchangeAs(t, server, http.MethodHead, "/bare")
			require.Equal(t, proto, bare.proto)
			require.EqualValues(t, 1000, bare.length)
			for range 2 {
				require.Equal(t, bare.withoutDate(), exchangeAs(t, server, http.MethodHead, "/guarded").withoutDate())
			}
			require.EqualValues(t, 3, runs.Load())
		})
	}
}

func runDifferential(t *testing.T, c handlerCase, proto string) {
	var runs atomic.Int32
	mux := http.NewServeMux()
	mux.Handle("/bare", c.serve)
	store := newEngine(t, idem.Config{MaxResponseBytes: 2 << 20}) // whose limit is not the one to test
	mux.Handle("/guarded", guardWith(t, store, httpidem.Config{Policy: httpidem.StoreAll})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		c.serve(w, r)
	})))
	server := startServer(t, mux, proto)

	bare := exchange(t, server, "/bare")
	require.Contains(t, []string{proto, ""}, bare.proto, "the test is about another protocol")
	first := exchange(t, server, "/guarded")
	require.Equal(t, bare.withoutDate(), first.withoutDate(), "first answer")
	require.EqualValues(t, 1, runs.Load())

	second := exchangeUntilDone(t, server, "/guarded")
	switch c.after {
	case runsAgain:
		require.EqualValues(t, 2, runs.Load())
		require.Equal(t, first.withoutDate(), second.withoutDate())
	case notKept:
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, http.StatusGone, second.status)
		require.Contains(t, second.body, "response_not_retained")
	case replayed:
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, "true", second.header.Get("Idempotency-Replayed"))
		first.interim = nil // informational answers are not the result
		requireReplay(t, first, second, c.drop)
	}
}

// requireReplay compares a replay with the first answer.
func requireReplay(t *testing.T, first, second answer, drop []string) {
	t.Helper()
	second.header.Del("Idempotency-Replayed")
	for _, name := range drop {
		require.NotContains(t, second.header, name)
		first.header.Del(name)
	}
	if first.length != second.length {
		require.EqualValues(t, -1, first.length, "the length may become known, but not change")
		second.length = first.length
		second.header.Del("Content-Length")
	}
	first.header.Del("Date")
	second.header.Del("Date")
	require.Equal(t, first, second, "replay")
}

// An answer is everything that a client can tell of a response.
type answer struct {
	proto   string
	interim []string // informational responses
	status  int
	header  http.Header
	body    string // its hash if it is long
	trailer http.Header
	length  int64
	failed  bool // the client got an error, in place of a response or at the end of it
}

// withoutDate removes Date, but not the knowledge whether there was one.
func (a answer) withoutDate() answer {
	a.header = a.header.Clone()
	if _, ok := a.header["Date"]; ok {
		a.header.Set("Date", "some")
	}
	return a
}

// startServer starts a server that speaks the protocol, and logs nothing.
func startServer(t *testing.T, h http.Handler, proto string) *testServer {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if server.EnableHTTP2 = proto == "HTTP/2.0"; server.EnableHTTP2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return &testServer{server}
}

type testServer struct{ *httptest.Server }

// client returns a client with connections of its own, which are never used twice: net/http's would send
// a request with a key again when a connection that was used before fails.
func (s *testServer) client(t *testing.T) *http.Client {
	transport, ok := s.Client().Transport.(*http.Transport)
	require.True(t, ok)
	transport = transport.Clone()
	transport.DisableCompression = true
	transport.ForceAttemptHTTP2 = s.EnableHTTP2
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       time.Minute,
	}
}

// exchange sends the request of the test's key to a path.
func exchange(t *testing.T, server *testServer, path string) answer {
	t.Helper()
	return exchangeAs(t, server, http.MethodPost, path)
}

func exchangeAs(t *testing.T, server *testServer, method, path string) (a answer) {
	t.Helper()
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		a.interim = append(a.interim, fmt.Sprint(code, h))
		return nil
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), method, server.URL+path, bytes.NewBufferString("a=1"))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set(httpidem.DefaultHeader, "key")
	client := server.client(t)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		a.failed = true
		return a
	}
	defer func() { require.NoError(t, resp.Body.Close()) }()
	hash := crc32.NewIEEE()
	var start bytes.Buffer
	_, err = io.Copy(hash, io.TeeReader(resp.Body, limited{&start}))
	a.proto, a.status, a.header, a.trailer, a.length, a.failed = resp.Proto, resp.StatusCode, resp.Header, resp.Trailer, resp.ContentLength, err != nil
	a.body = fmt.Sprintf("%s %x", start.String(), hash.Sum(nil))
	return a
}

// limited keeps what comes first, for failures that can be read.
type limited struct{ *bytes.Buffer }

func (l limited) Write(p []byte) (int, error) {
	_, _ = l.Buffer.Write(p[:min(len(p), max(0, 400-l.Len()))])
	return len(p), nil
}

// exchangeUntilDone sends the request until it is not told that the first one still runs: a client can
// have all of a flushed answer before it is recorded.
func exchangeUntilDone(t *testing.T, server *testServer, path string) answer {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		a := exchange(t, server, path)
		if a.status != http.StatusConflict || a.header.Get("Retry-After") == "" || time.Now().After(deadline) {
			return a
		}
	}
}

// guard returns a middleware with an engine of its own, and a shared scope unless conf has another.
func guard(tb testing.TB, conf httpidem.Config) func(http.Handler) http.Handler {
	tb.Helper()
	return guardWith(tb, newEngine(tb, idem.Config{}), conf)
}

func guardWith(tb testing.TB, store idem.Store, conf httpidem.Config) func(http.Handler) http.Handler {
	tb.Helper()
	if conf.Scope == nil {
		conf.Scope = httpidem.SharedScope
	}
	middleware, err := httpidem.New(store, conf)
	require.NoError(tb, err)
	return middleware
}

func newEngine(tb testing.TB, conf idem.Config) *idem.Engine {
	tb.Helper()
	engine, err := idem.New(conf)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, engine.Close()) })
	return engine
}
