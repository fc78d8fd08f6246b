package httpidem_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// The benchmarks call handlers in process, with a request and a response writer that cost next to nothing
// themselves, unless they say otherwise. They measure one goroutine: what many cost each other is the store's.

// payment is a JSON body of 300 bytes.
var payment = fmt.Appendf(nil, `{"amount":1250,"currency":"EUR","description":"%0*d"}`, 300-len(`{"amount":1250,"currency":"EUR","description":""}`), 0)

// benchHandler reads the request and answers 201 with a header and 100 bytes.
var benchHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	var room [512]byte
	for {
		if _, err := r.Body.Read(room[:]); err != nil {
			break
		}
	}
	h := w.Header()
	h["Content-Type"] = contentType
	h["Location"] = location
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(benchAnswer)
})

var (
	contentType = []string{"application/json"}
	location    = []string{"/payments/1"}
	benchAnswer = fmt.Appendf(nil, `{"id":1,"pad":"%0*d"}`, 100-len(`{"id":1,"pad":""}`), 0)
)

// benchWriter is a response writer whose header map is used again.
type benchWriter struct {
	header http.Header
	status int
	bytes  int
}

func (w *benchWriter) Header() http.Header    { return w.header }
func (w *benchWriter) WriteHeader(status int) { w.status = status }
func (w *benchWriter) Write(p []byte) (int, error) {
	w.bytes += len(p)
	return len(p), nil
}

// benchExchange is a request and its writer, which are used again.
type benchExchange struct {
	w    benchWriter
	r    http.Request
	body bytes.Reader
	key  []string
}

func newBenchExchange(ctx context.Context) *benchExchange {
	x := &benchExchange{w: benchWriter{header: make(http.Header)}, key: []string{""}}
	x.r = *(&http.Request{
		Method: http.MethodPost, ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Path: "/payments"}, ContentLength: int64(len(payment)),
		Header: http.Header{httpidem.DefaultHeader: x.key, "Authorization": {"Bearer 0123456789abcdef"}},
	}).WithContext(ctx)
	return x
}

// serve sends the key's request through h.
func (x *benchExchange) serve(h http.Handler, key string) {
	clear(x.w.header)
	x.key[0] = key
	x.body.Reset(payment)
	x.r.Body = io.NopCloser(&x.body)
	h.ServeHTTP(&x.w, &x.r)
}

// benchKeys returns n distinct keys of the length of a UUID.
func benchKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("0123456789abcdef-0123456-1%010d", i)
	}
	return keys
}

func benchMiddleware(b *testing.B, conf httpidem.Config) http.Handler {
	// Responses that expire at the rate at which they come, as they would after a day of running: the
	// first touch of memory is not the middleware's cost.
	return guardWith(b, newEngine(b, idem.Config{TTL: 50 * time.Millisecond}), conf)(benchHandler)
}

func BenchmarkFresh(b *testing.B) {
	for name, scope := range map[string]func(*http.Request) (string, error){
		"SharedScope": httpidem.SharedScope,
		"ScopeHeader": httpidem.ScopeHeader("Authorization"),
	} {
		b.Run(name, func(b *testing.B) {
			h := benchMiddleware(b, httpidem.Config{Scope: scope})
			benchFresh(b, h)
		})
	}
	b.Run("bare", func(b *testing.B) { benchFresh(b, benchHandler) })
	b.Run("store", benchStore)
}

// benchStore is what the store alone costs for the same requests.
func benchStore(b *testing.B) {
	engine := newEngine(b, idem.Config{TTL: 50 * time.Millisecond})
	keys := benchKeys(1 << 17)
	header := []byte("Content-Type: application/json\r\nLocation: /payments/1\r\n")
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		out, err := engine.Begin(b.Context(), idem.Request{Key: keys[i%len(keys)]})
		if err != nil || out.State != idem.Fresh {
			b.Fatal(out.State, err)
		}
		if err := engine.Complete(b.Context(), out.Claim, idem.Response{Status: 201, Header: header, Body: benchAnswer}); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func benchFresh(b *testing.B, h http.Handler) {
	x := newBenchExchange(b.Context())
	keys := benchKeys(1 << 17) // which takes longer than a response is kept
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		x.serve(h, keys[i%len(keys)])
		i++
	}
	require.Equal(b, http.StatusCreated, x.w.status)
	require.Empty(b, x.w.header.Get("Idempotency-Replayed"))
	require.Equal(b, i*len(benchAnswer), x.w.bytes)
}

// BenchmarkReplay compares a replay with a handler that works for 10 µs.
func BenchmarkReplay(b *testing.B) {
	b.Run("ScopeHeader", func(b *testing.B) {
		h := guard(b, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})(benchHandler)
		x := newBenchExchange(b.Context())
		keys := benchKeys(1 << 10)
		for _, key := range keys {
			x.serve(h, key)
		}
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			x.serve(h, keys[i%len(keys)])
			i++
		}
		require.Equal(b, http.StatusCreated, x.w.status)
		require.Equal(b, "true", x.w.header.Get("Idempotency-Replayed"))
		require.Equal(b, (i+len(keys))*len(benchAnswer), x.w.bytes)
	})
	b.Run("bare with 10 µs of work", func(b *testing.B) {
		benchFresh(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for end := time.Now().Add(10 * time.Microsecond); time.Now().Before(end); {
			}
			benchHandler(w, r)
		}))
	})
}

// BenchmarkLoopback measures whole requests on 64 connections that are kept alive, the client's share of
// the work included.
func BenchmarkLoopback(b *testing.B) {
	h := benchMiddleware(b, httpidem.Config{Scope: httpidem.SharedScope})
	mux := http.NewServeMux()
	mux.Handle("/bare", benchHandler)
	mux.Handle("/guarded", h)
	server := httptest.NewServer(mux)
	b.Cleanup(server.Close)
	const connections = 64
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	b.Cleanup(transport.CloseIdleConnections)
	var count atomic.Int64
	for _, path := range []string{"/bare", "/guarded"} {
		b.Run(path[1:], func(b *testing.B) {
			b.SetParallelism(connections / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					loop(b, transport, server.URL+path, strconv.FormatInt(count.Add(1), 10))
				}
			})
		})
	}
}

// loop sends one request with a new key.
func loop(b *testing.B, transport *http.Transport, url, key string) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(payment))
	if err != nil {
		b.Error(err)
		return
	}
	req.Header[httpidem.DefaultHeader] = []string{key}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		b.Error(err)
		return
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusCreated || resp.Header.Get("Idempotency-Replayed") != "" {
		b.Error("not a fresh answer", resp.Status, err)
	}
}
