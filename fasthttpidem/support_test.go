package fasthttpidem_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// guard returns a middleware with an engine of its own, and a shared scope unless conf has another.
func guard(tb testing.TB, conf fasthttpidem.Config) func(fasthttp.RequestHandler) fasthttp.RequestHandler {
	tb.Helper()
	return guardWith(tb, newEngine(tb, idem.Config{}), conf)
}

func guardWith(tb testing.TB, store idem.Store, conf fasthttpidem.Config) func(fasthttp.RequestHandler) fasthttp.RequestHandler {
	tb.Helper()
	if conf.Scope == nil {
		conf.Scope = fasthttpidem.SharedScope
	}
	middleware, err := fasthttpidem.New(store, conf)
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

// status returns a handler that answers with a status and body, and header fields given as name, value pairs.
func status(code int, body string, fields ...string) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		for i := 0; i < len(fields); i += 2 {
			ctx.Response.Header.Add(fields[i], fields[i+1])
		}
		ctx.SetStatusCode(code)
		ctx.SetBodyString(body)
	}
}

// counted returns a handler that counts its runs and is h otherwise.
func counted(runs *atomic.Int32, h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		runs.Add(1)
		h(ctx)
	}
}

// A testServer is a server on a port of its own, until the test ends.
type testServer struct {
	*fasthttp.Server
	addr string
}

// startServer starts a server that logs nothing. The options are called before it is started.
func startServer(tb testing.TB, h fasthttp.RequestHandler, options ...func(*fasthttp.Server)) *testServer {
	tb.Helper()
	server := &fasthttp.Server{Handler: h, Logger: log.New(io.Discard, "", 0)}
	for _, option := range options {
		option(server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tb.Cleanup(func() {
		// Shutdown looks at once, and then every 100 ms. The connections of this test have just been closed.
		for end := time.Now().Add(20 * time.Millisecond); server.GetOpenConnectionsCount() > 0 && time.Now().Before(end); {
			<-time.After(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(tb, server.ShutdownWithContext(ctx), "connections are open after Shutdown")
		_ = listener.Close() // Shutdown does not know of it if Serve has not come that far yet
		<-served             //nolint:errcheck // the listener was closed, which is what was wanted
	})
	return &testServer{Server: server, addr: listener.Addr().String()}
}

// A wire is a connection, for bytes as a client might send them.
type wire struct {
	net.Conn
	tb testing.TB
	r  *bufio.Reader
}

// dial opens a connection that ends with the test.
func (s *testServer) dial(tb testing.TB) *wire {
	tb.Helper()
	conn, err := net.Dial("tcp", s.addr)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	require.NoError(tb, conn.SetDeadline(time.Now().Add(time.Minute)))
	return &wire{Conn: conn, tb: tb, r: bufio.NewReaderSize(conn, 64<<10)}
}

// send sends a text in whose lines a line feed stands for the end that HTTP wants.
func (w *wire) send(text string) {
	w.tb.Helper()
	w.sendRaw(strings.ReplaceAll(text, "\n", "\r\n"))
}

func (w *wire) sendRaw(text string) {
	w.tb.Helper()
	_, err := io.WriteString(w.Conn, text)
	require.NoError(w.tb, err)
}

func (w *wire) answer() answer { return readAnswer(w.r) }

// exchange sends a text on a connection that is used for nothing else, and returns the answer.
func (s *testServer) exchange(tb testing.TB, text string) answer {
	tb.Helper()
	w := s.dial(tb)
	defer func() { _ = w.Close() }()
	w.send(text)
	return w.answer()
}

// post sends a body under the key, on a connection of its own. Fields are name, value pairs.
func post(tb testing.TB, s *testServer, key, body string, fields ...string) answer {
	tb.Helper()
	w := s.dial(tb)
	defer func() { _ = w.Close() }()
	w.sendRaw(postText(key, body, fields...))
	return w.answer()
}

// postText returns the bytes of a request.
func postText(key, body string, fields ...string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n", key, len(body))
	for i := 0; i < len(fields); i += 2 {
		fmt.Fprintf(&text, "%s: %s\r\n", fields[i], fields[i+1])
	}
	return text.String() + "\r\n" + body
}

// postUntilDone sends the request until it is not told that the first one still runs: a client can have all of a stream
// but its end before it is recorded.
func postUntilDone(tb testing.TB, s *testServer, key, body string, fields ...string) answer {
	tb.Helper()
	return untilDone(func() answer { return post(tb, s, key, body, fields...) })
}

func untilDone(send func() answer) answer {
	for deadline := time.Now().Add(10 * time.Second); ; {
		a := send()
		if a.status != http.StatusConflict || a.get("Retry-After") == "" || time.Now().After(deadline) {
			return a
		}
	}
}

// An answer is everything that a client can tell of a response.
type answer struct {
	interim []string // informational responses
	status  int
	lines   []string            // the header as it came, in order
	header  map[string][]string // the same, by names as they came
	body    string              // its beginning and a hash if it is long
	trailer http.Header
	length  int64
	closes  bool // the connection is not used any more
	failed  bool // the client got an error, in place of a response or at the end of it
}

// get returns the first value of a field whose name is spelled like that.
func (a answer) get(name string) string {
	if values := a.header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// readAnswer reads an answer and leaves what follows it.
func readAnswer(r *bufio.Reader) (a answer) {
	for {
		head := peekHead(r)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			a.failed = true
			return a
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			a.interim = append(a.interim, head)
			continue
		}
		a.status, a.length, a.closes = resp.StatusCode, resp.ContentLength, resp.Close
		a.lines, a.header = strings.Split(head, "\r\n")[1:], map[string][]string{}
		for _, line := range a.lines {
			name, value, _ := strings.Cut(line, ": ")
			a.header[name] = append(a.header[name], value)
		}
		hash, start := crc32.NewIEEE(), new(bytes.Buffer)
		n, err := io.Copy(hash, io.TeeReader(resp.Body, limited{start}))
		_ = resp.Body.Close()
		a.failed, a.trailer, a.body = err != nil, resp.Trailer, start.String()
		if n > int64(len(a.body)) {
			a.body += fmt.Sprintf("... %d bytes %x", n, hash.Sum(nil))
		}
		return a
	}
}

// limited keeps what comes first, for failures that can be read.
type limited struct{ *bytes.Buffer }

func (l limited) Write(p []byte) (int, error) {
	_, _ = l.Buffer.Write(p[:min(len(p), max(0, 4000-l.Len()))])
	return len(p), nil
}

// peekHead returns the lines before the body, which can be read again.
func peekHead(r *bufio.Reader) string {
	for n := 1; ; n = r.Buffered() + 1 {
		if _, err := r.Peek(n); err != nil {
			return ""
		}
		text, _ := r.Peek(r.Buffered())
		if head, _, ok := strings.Cut(string(text), "\r\n\r\n"); ok {
			return head
		}
	}
}

// inProcess serves a request without a server, which takes what no client could send.
func inProcess(tb testing.TB, h fasthttp.RequestHandler, req *fasthttp.Request) answer {
	tb.Helper()
	var ctx fasthttp.RequestCtx
	ctx.Init(req, nil, log.New(io.Discard, "", 0))
	h(&ctx)
	var sent bytes.Buffer
	w := bufio.NewWriter(&sent)
	require.NoError(tb, ctx.Response.Write(w))
	require.NoError(tb, w.Flush())
	return readAnswer(bufio.NewReaderSize(&sent, 64<<10))
}

// newRequest returns a request for inProcess. Fields are name, value pairs.
func newRequest(key, body string, fields ...string) *fasthttp.Request {
	req := new(fasthttp.Request)
	req.Header.SetMethod(http.MethodPost)
	req.SetRequestURI("/payments")
	req.Header.SetHost("x")
	req.Header.Set(httpidem.DefaultHeader, key)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	req.SetBodyString(body)
	return req
}

// requireProblem checks an answer of the middleware's own, and returns its members.
func requireProblem(tb testing.TB, a answer, status int, code string) map[string]any {
	tb.Helper()
	require.Equal(tb, status, a.status, a.body)
	require.Equal(tb, "application/problem+json", a.get("Content-Type"))
	var members map[string]any
	require.NoError(tb, json.Unmarshal([]byte(a.body), &members))
	require.Equal(tb, code, members["code"])
	require.EqualValues(tb, status, members["status"])
	require.NotEmpty(tb, members["title"])
	require.Empty(tb, a.get("Idempotency-Replayed"))
	return members
}

// requireReplayed checks that an answer is the recorded one.
func requireReplayed(tb testing.TB, a answer, status int, body string) {
	tb.Helper()
	require.Equal(tb, status, a.status, a.body)
	require.Equal(tb, body, a.body)
	require.Equal(tb, "true", a.get("Idempotency-Replayed"))
}

// newFaultyStore returns a store that works, until a test makes it fail.
func newFaultyStore(tb testing.TB, conf idem.Config) *httpcases.FaultyStore {
	tb.Helper()
	return &httpcases.FaultyStore{Store: newEngine(tb, conf)}
}
