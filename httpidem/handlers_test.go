package httpidem_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a handler leaves under its key, see TestDifferential.
type aftermath int

const (
	replayed   aftermath = iota // the second request gets what the first got
	notKept                     // the second request is answered 410
	runsAgain                   // the key is free
	onlyHTTP1  = "HTTP/1.1"
	chunkBytes = 64 << 10
)

// A handlerCase is a handler that net/http treats in some way of its own.
type handlerCase struct {
	name  string
	after aftermath
	drop  []string // fields of the first answer that a replay must not have
	only  string   // the protocol, if it makes no sense on the other
	serve http.HandlerFunc
}

// status returns a handler that answers with a status and body, and header fields given as name, value pairs.
func status(code int, body string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Add(fields[i], fields[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// steps returns a handler that writes the parts one by one, without a status.
func steps(parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range parts {
			_, _ = w.Write([]byte(p))
		}
	}
}

// afterHeader returns a handler that does something late with the header.
func afterHeader(late func(h http.Header)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Early", "1")
		w.Header().Add("X-List", "a")
		w.Header().Add("X-List", "b")
		w.WriteHeader(http.StatusCreated)
		late(w.Header())
		_, _ = w.Write([]byte("body"))
		late(w.Header())
	}
}

var statusCases = []handlerCase{
	{name: "101 then 201", only: "HTTP/2.0", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("created"))
	}},
	{name: "304 with a body that is refused, and no type", serve: status(304, "body")},
	{name: "nothing", serve: func(http.ResponseWriter, *http.Request) {}},
	{name: "200 and a body", serve: status(200, "ok")},
	{name: "201 without a body", serve: status(201, "", "Location", "/payments/1", "Etag", `"1"`)},
	{name: "202", serve: status(202, "accepted")},
	{name: "204", serve: status(204, "", "X-Kept", "1")},
	{name: "204 with a body that is refused", serve: status(204, "body")},
	{name: "205", serve: status(205, "")},
	{name: "303", serve: status(303, "", "Location", "/payments/1")},
	{name: "304", serve: status(304, "", "Etag", `"1"`)},
	{name: "304 with a body that is refused", serve: status(304, "body", "Content-Type", "text/plain")},
	{name: "400", serve: status(400, `{"error":"amount"}`, "Content-Type", "application/json")},
	{name: "404", serve: http.NotFound},
	{name: "418", serve: status(418, "teapot")},
	{name: "500", serve: status(500, "broken")},
	{name: "503", serve: status(503, "later", "Retry-After", "7")},
	{name: "599", serve: status(599, "odd")},
	{name: "999", serve: status(999, "odder")},
	{name: "redirect", serve: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/payments/1", http.StatusFound) }},
	{name: "error", serve: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusConflict) }},
	{name: "103 then 201", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Final", "1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("created"))
	}},
	{name: "102 twice then 200", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(http.StatusProcessing)
		_, _ = w.Write([]byte("done"))
	}},
	{name: "100 then 201", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusContinue)
		w.WriteHeader(http.StatusCreated)
	}},
	{name: "103 and nothing else", serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }},
	{name: "103 that comes too late", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusEarlyHints)
	}},
	{name: "two statuses", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("created"))
	}},
	{name: "status after the body", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		w.WriteHeader(http.StatusInternalServerError)
	}},
	{name: "empty write is a 200", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(nil)
		w.Header().Set("X-Late", "1")
		w.WriteHeader(http.StatusInternalServerError)
	}},
}

var headerCases = []handlerCase{
	{name: "values in order", serve: status(200, "", "Link", "<a>", "X-Other", "1", "Link", "<b>", "Link", "<c>, <d>")},
	{name: "commas and quotes", serve: status(200, "", "Content-Disposition", `attachment; filename="a, b"`)},
	{name: "empty value", serve: status(200, "", "X-Empty", "")},
	{name: "spaces in values", serve: status(200, "", "X-Space", "  a  b ")},
	{name: "newlines in values", only: onlyHTTP1, serve: status(200, "", "X-Line", "a\r\nX-Evil: b")}, // HTTP/2 drops them
	{name: "name that is not canonical", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["x-lower-CASE"] = []string{"1"}
	}},
	{name: "name that is not a name", only: onlyHTTP1, serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["bad name"] = []string{"1"}
		w.Header()[""] = []string{"1"}
	}},
	{name: "set late", serve: afterHeader(func(h http.Header) { h.Set("X-Late", "1") })},
	{name: "deleted late", serve: afterHeader(func(h http.Header) { h.Del("X-Early") })},
	{name: "changed in place late", serve: afterHeader(func(h http.Header) {
		if list := h["X-List"]; len(list) > 1 {
			list[0], list[1] = "changed", "changed"
		}
	})},
	{name: "cleared late", serve: afterHeader(func(h http.Header) { clear(h) })},
	{name: "no Content-Type by wish", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = w.Write([]byte("<html>"))
	}},
	{name: "no Date by wish", serve: func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil }},
	{name: "cookies", drop: []string{"Set-Cookie"}, serve: status(200, "", "Set-Cookie", "a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "Set-Cookie", "b=2")},
	{name: "challenge", drop: []string{"Www-Authenticate"}, serve: status(401, "", "WWW-Authenticate", "Basic")},
	{name: "age and request id", drop: []string{"Age", "X-Request-Id", "Proxy-Status"},
		serve: status(200, "", "Age", "5", "X-Request-Id", "r1", "Proxy-Status", "x", "X-Kept", "1")},
	{name: "hop by hop", only: onlyHTTP1, drop: []string{"Connection", "Keep-Alive", "X-Hop"},
		serve: status(200, "", "Connection", "close, X-Hop", "X-Hop", "1", "Keep-Alive", "timeout=5", "X-Kept", "1")},
	{name: "hop by hop in two lines", only: onlyHTTP1, drop: []string{"Connection", "X-Hop"},
		serve: status(200, "", "Connection", "close", "Connection", "X-Hop", "X-Hop", "1")},
	{name: "connection close", drop: []string{"Connection"}, serve: status(200, "bye", "Connection", "close")},
}

var bodyCases = []handlerCase{
	{name: "sniffed HTML", serve: steps("<html><body>")},
	{name: "sniffed binary", serve: steps("\x89PNG\x0D\x0A\x1A\x0A", "\x00\xff\xfe")},
	{name: "sniffed over several writes", serve: steps("<h", "t", "ml", ">", strings.Repeat(" ", 600))},
	{name: "every byte value", serve: func(w http.ResponseWriter, _ *http.Request) {
		for i := range 4096 * 256 / chunkBytes {
			_, _ = w.Write(bytes.Repeat([]byte{byte(i), 0, 0xff, 0x80}, chunkBytes/4))
		}
	}},
	{name: "gzip", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		_, _ = z.Write([]byte(strings.Repeat("text ", 1000)))
		_ = z.Close()
	}},
	{name: "2047 bytes", serve: steps(strings.Repeat("a", 2000), strings.Repeat("b", 47))},
	{name: "2048 bytes", serve: steps(strings.Repeat("a", 2000), strings.Repeat("b", 48))},
	{name: "2049 bytes", serve: steps(strings.Repeat("a", 2000), strings.Repeat("b", 49))},
	{name: "4097 bytes", serve: steps(strings.Repeat("a", 4096), "b")},
	{name: "up to the limit", serve: steps(strings.Repeat("a", 1<<20-1), "b")},
	{name: "one byte more", after: notKept, serve: steps(strings.Repeat("a", 1<<20), "b")},
	{name: "one byte more at once", after: notKept, serve: steps(strings.Repeat("a", 1<<20+1))},
	streamCase(4),
	{name: "Content-Length that is right", serve: status(200, "12345", "Content-Length", "5")},
	{name: "Content-Length that is too small", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("12345"))
		_, err := w.Write([]byte("67"))
		if err != nil {
			_, _ = w.Write([]byte(err.Error()))
		}
	}},
	{name: "Content-Length that was reached by much", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 5000))
		_, _ = w.Write([]byte("more"))
	}},
	{name: "Content-Length that was reached and flushed", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("12345"))
		flush(w)
		_, _ = w.Write([]byte("more"))
	}},
	{name: "Content-Length that is zero", serve: status(200, "", "Content-Length", "0")},
	{name: "Content-Length that is too large", serve: status(200, "12345", "Content-Length", "50")},
	{name: "Content-Length that is no number", serve: status(200, "12345", "Content-Length", "five")},
	{name: "Content-Length that is negative", only: onlyHTTP1, serve: status(200, "12345", "Content-Length", "-5")},
	{name: "io.Copy of a little", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("a little")})
	}},
	{name: "io.Copy of much", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader(strings.Repeat("much ", 50_000))})
	}},
	{name: "WriteString", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "str")
		_, _ = w.(io.StringWriter).WriteString("ing")
	}},
	{name: "ServeContent", serve: func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "a.txt", time.Unix(1e9, 0), strings.NewReader("content"))
	}},
	{name: "echo", serve: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }},
	{name: "request of another kind", serve: func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.ContentLength, r.TransferEncoding, r.Header["Content-Type"], r.FormValue("a"))
	}},
}

var streamCases = []handlerCase{
	{name: "trailers not announced, as much as is collected", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 2048))
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
	}},
	{name: "sniffed in spite of a Transfer-Encoding", only: "HTTP/2.0", drop: []string{"Transfer-Encoding"},
		serve: status(200, "<html>", "Transfer-Encoding", "chunked")},
	{name: "flush before the body", serve: func(w http.ResponseWriter, _ *http.Request) {
		flush(w)
		_, _ = w.Write([]byte("<html>"))
	}},
	{name: "flush and nothing else", serve: func(w http.ResponseWriter, _ *http.Request) { flush(w) }},
	{name: "flush after the header was changed late", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Early", "1")
		_, _ = w.Write([]byte("body"))
		w.Header().Set("X-Early", "2")
		w.Header().Set("X-Late", "1")
		flush(w)
		_, _ = w.Write([]byte("more"))
	}},
	{name: "flush within the body", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<ht"))
		flush(w)
		_, _ = w.Write([]byte("ml>"))
	}},
	{name: "flush after the body", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		_, _ = w.Write([]byte("body"))
		flush(w)
		w.Header().Set("X-Late", "1")
	}},
	{name: "events", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	}},
	{name: "flushed beyond the limit", after: notKept, serve: func(w http.ResponseWriter, _ *http.Request) {
		for range 20 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), chunkBytes))
			flush(w)
		}
	}},
	{name: "trailers announced", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Never")
		w.Header().Add("Trailer", "X-Count")
		_, _ = w.Write([]byte("body"))
		w.Header().Set("X-Sum", "abc")
		w.Header().Add("X-Count", "1")
		w.Header().Add("X-Count", "2")
		w.Header().Set("X-Late", "no trailer")
	}},
	{name: "trailers announced and set early", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "early")
		_, _ = w.Write([]byte("body"))
		w.Header().Set("X-Sum", "late")
	}},
	{name: "trailers after much", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100_000))
		w.Header().Set("X-Sum", "abc")
	}},
	{name: "trailers not announced", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100_000))
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
		w.Header().Add(http.TrailerPrefix+"X-Sum", "def")
	}},
	{name: "trailers not announced, little body", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
	}},
	{name: "trailers not announced but early", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
		_, _ = w.Write([]byte("body"))
	}},
	{name: "trailers not announced, after a flush", serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		flush(w)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
	}},
	{name: "trailers not announced, no body", serve: func(w http.ResponseWriter, _ *http.Request) {
		flush(w)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
	}},
	{name: "trailers announced and deleted", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "pending")
		_, _ = w.Write([]byte("body"))
		w.Header().Del("X-Sum")
	}},
	{name: "trailers announced and emptied", only: onlyHTTP1, serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "pending")
		_, _ = w.Write([]byte("body"))
		w.Header()["X-Sum"] = nil
	}},
	{name: "trailers not announced and deleted", serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "pending")
		_, _ = w.Write([]byte("body"))
		w.Header().Del(http.TrailerPrefix + "X-Sum")
	}},
	{name: "identity", only: onlyHTTP1, drop: []string{"Connection"}, serve: status(200, "body", "Transfer-Encoding", "identity")},
	{name: "TimeoutHandler", serve: func(w http.ResponseWriter, r *http.Request) {
		http.TimeoutHandler(status(201, "in time", "X-Kept", "1"), time.Minute, "").ServeHTTP(w, r)
	}},
	{name: "deadlines and full duplex", serve: func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_, _ = fmt.Fprintln(w, c.SetReadDeadline(time.Now().Add(time.Minute)), c.SetWriteDeadline(time.Now().Add(time.Minute)))
		if r.ProtoMajor == 1 { // HTTP/2 is always full duplex, and says that it knows no such thing
			_, _ = fmt.Fprintln(w, c.EnableFullDuplex())
		}
	}},
	{name: "hijack", after: notKept, only: onlyHTTP1, serve: hijack("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")},
	{name: "hijack after 200", after: notKept, only: onlyHTTP1, serve: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		w.WriteHeader(http.StatusOK)
		hijack("raw")(w, r)
	}},
	{name: "hijack after much", after: notKept, only: onlyHTTP1, serve: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3003")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 3000))
		hijack("raw")(w, r)
	}},
	{name: "hijack after 101", after: notKept, only: onlyHTTP1, serve: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Upgrade", "chat")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		hijack("talk")(w, r)
	}},
}

var endCases = []handlerCase{
	{name: "panic", after: runsAgain, serve: func(http.ResponseWriter, *http.Request) { panic("no") }},
	{name: "panic after a write", after: runsAgain, serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		panic("no")
	}},
	{name: "panic after a flush", after: runsAgain, serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		flush(w)
		panic("no")
	}},
	{name: "ErrAbortHandler", after: runsAgain, serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		panic(http.ErrAbortHandler)
	}},
	{name: "Goexit", after: runsAgain, serve: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("body"))
		runtime.Goexit()
	}},
	{name: "status that is none", after: runsAgain, serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(42) }},
}

// hijack returns a handler that takes the connection over and writes to it.
func hijack(raw string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = w.Write([]byte("refused"))
		_, _ = rw.WriteString(raw)
		_ = rw.Flush()
		_ = conn.Close()
	}
}

// streamCase returns a handler that writes so many MiB.
func streamCase(size int) handlerCase {
	return handlerCase{name: fmt.Sprint(size, " MiB"), after: notKept, serve: func(w http.ResponseWriter, _ *http.Request) {
		chunk := bytes.Repeat([]byte("0123456789abcdef"), chunkBytes/16)
		for range size << 20 / chunkBytes {
			_, _ = w.Write(chunk)
		}
	}}
}

// proxyCase returns a handler that is a reverse proxy, with an upstream that uses what proxies pass on.
func proxyCase(t *testing.T) handlerCase {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", "abc")
	}))
	t.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	require.NoError(t, err)
	return handlerCase{name: "reverse proxy", serve: httputil.NewSingleHostReverseProxy(to).ServeHTTP}
}
