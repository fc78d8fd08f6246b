package fasthttpidem_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// streamOf returns a handler whose body is a reader with a size, which is negative if nobody knows it.
func streamOf(size int, open func() io.Reader) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(201)
		ctx.SetBodyStream(open(), size)
	}
}

// textOf returns a function for streamOf. Its reader is of no type that fasthttp knows.
func textOf(s string) func() io.Reader {
	return func() io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }
}

// endless is a reader of numbers, whose beginning depends on how often it was read, without an end.
type endless struct{ reads int }

var numbers = fmt.Sprint(rand.New(rand.NewPCG(1, 2)).Perm(10_000))

func (e *endless) Read(p []byte) (int, error) {
	e.reads++
	return copy(p, numbers[e.reads%1000:]), nil
}

func endlessTo(n int64) io.Reader { return struct{ io.Reader }{io.LimitReader(&endless{}, n)} }

// written returns a handler that streams what a function writes.
func written(write func(w *bufio.Writer)) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(201)
		ctx.SetBodyStreamWriter(write)
	}
}

// writeEvents writes so many events and flushes each.
func writeEvents(n int) func(w *bufio.Writer) {
	return func(w *bufio.Writer) {
		for i := range n {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = w.Flush()
		}
	}
}

var streamCases = []handlerCase{
	{name: "stream of a known size", serve: streamOf(4, textOf("body"))},
	{name: "stream of no bytes", serve: streamOf(0, textOf(""))},
	{name: "stream up to the limit", serve: streamOf(1<<20, textOf(strings.Repeat("x", 1<<20)))},
	{name: "stream of one byte more", after: notKept, serve: streamOf(1<<20+1, textOf(strings.Repeat("x", 1<<20+1)))},
	{name: "stream that is shorter than it says", after: notKept, original: 201, serve: streamOf(10, textOf("body"))},
	{name: "stream that is longer than it says", after: notKept, original: 201, serve: streamOf(2, textOf("body"))},
	{name: "long stream that is shorter than it says", after: notKept, original: 201, serve: streamOf(2<<20, textOf("body"))},
	{name: "stream of an unknown size", serve: streamOf(-1, textOf("body"))},
	{name: "stream of an unknown size and no bytes", serve: streamOf(-1, textOf(""))},
	{name: "stream of an unknown size up to the limit", serve: streamOf(-1, textOf(strings.Repeat("x", 1<<20)))},
	{name: "stream of an unknown size and one byte more", after: notKept, serve: streamOf(-1, textOf(strings.Repeat("x", 1<<20+1)))},
	{name: "strings.Reader of an unknown size", serve: streamOf(-1, func() io.Reader { return strings.NewReader(large) })},
	{name: "bytes.Reader of an unknown size", serve: streamOf(-1, func() io.Reader { return bytes.NewReader([]byte(large)) })},
	{name: "bytes.Buffer of an unknown size", serve: streamOf(-1, func() io.Reader { return bytes.NewBufferString(large) })},
	{name: "io.LimitedReader", serve: streamOf(-1, func() io.Reader { return io.LimitReader(strings.NewReader("body and more"), 4) })},
	{name: "io.LimitedReader over the limit", after: notKept, serve: streamOf(-1, func() io.Reader { return io.LimitReader(&endless{}, 2<<20) })},
	{name: "io.LimitedReader that is shorter than it says", after: notKept, original: 201, serve: streamOf(-1, func() io.Reader { return io.LimitReader(strings.NewReader("body"), 10) })},
	{name: "events", serve: written(writeEvents(20))},
	{name: "events, the header first", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/event-stream")
		ctx.Response.ImmediateHeaderFlush = true
		ctx.SetBodyStreamWriter(writeEvents(3))
	}},
	{name: "known size, the header first", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.ImmediateHeaderFlush = true
		ctx.SetBodyStream(strings.NewReader("body"), 4)
	}},
	{name: "a writer that writes nothing", serve: written(func(*bufio.Writer) {})},
	{name: "a writer that does not flush", serve: written(func(w *bufio.Writer) { _, _ = w.WriteString(large) })},
	{name: "events beyond the limit", after: notKept, serve: written(func(w *bufio.Writer) {
		for range 20 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<10))
			_ = w.Flush()
		}
	})},
	{name: "stream of the request's own memory", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStream(bytes.NewReader(ctx.PostBody()), -1)
	}},
	{name: "stream with a type and many fields", serve: func(ctx *fasthttp.RequestCtx) {
		status(202, "", "Content-Type", "text/html", "X-A", "1", "X-A", "2", "Etag", `"1"`, "Server", "own/1")(ctx)
		ctx.SetBodyStream(textOf("<html>")(), -1)
	}},
	{name: "stream that is set aside for bytes", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStream(textOf("stream")(), -1)
		ctx.SetBodyString("bytes")
	}},
	{name: "stream with a connection that closes", drop: []string{"Connection"}, serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetConnectionClose()
		ctx.SetBodyStream(textOf("body")(), -1)
	}},
	{name: "hijack", after: notKept, original: 101, serve: hijack(false)},
	{name: "hijack without a response", after: notKept, original: 101, serve: hijack(true)},
}

// hijack returns a handler that takes the connection over and writes to it.
func hijack(noResponse bool) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(202)
		ctx.Response.Header.Set("X-Kept", "1")
		ctx.HijackSetNoResponse(noResponse)
		ctx.Hijack(func(conn net.Conn) {
			if noResponse {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
			}
		})
	}
}

// trailing returns a handler that announces trailers and sets them with its body.
func trailing(stream bool, names string, fields ...string) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		h := &ctx.Response.Header
		if err := h.SetTrailer(names); err != nil {
			panic(err)
		}
		set := func() {
			for i := 0; i < len(fields); i += 2 {
				h.Add(fields[i], fields[i+1])
			}
		}
		if !stream {
			set()
			ctx.SetBodyString("body")
			return
		}
		ctx.SetBodyStream(io.MultiReader(strings.NewReader("body"), atEnd(set)), -1)
	}
}

// atEnd is a reader of nothing that calls a function first, as the one that sends the body.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

var trailerCases = []handlerCase{
	{name: "trailers", serve: trailing(false, "X-Sum, X-Count", "X-Sum", "abc", "X-Count", "1", "X-Count", "2", "X-Field", "no trailer")},
	{name: "trailers of a stream", serve: trailing(true, "X-Sum, X-Count", "X-Sum", "abc", "X-Count", "1", "X-Count", "2")},
	{name: "trailers with others between", serve: trailing(false, "X-A, X-B", "X-A", "1", "X-B", "1", "X-A", "2")},
	{name: "trailers that never come", serve: trailing(false, "X-Sum, X-Never", "X-Sum", "abc")},
	{name: "trailers of a stream that never come", serve: trailing(true, "X-Sum, X-Never", "X-Sum", "abc")},
	{name: "trailers that are not kept", drop: []string{"X-Request-Id"}, serve: trailing(false, "X-Request-Id", "X-Request-Id", "r1")},
	{name: "trailers and no body", serve: func(ctx *fasthttp.RequestCtx) {
		trailing(false, "X-Sum", "X-Sum", "abc")(ctx)
		ctx.ResetBody()
	}},
	{name: "trailers and 204", serve: func(ctx *fasthttp.RequestCtx) {
		trailing(false, "X-Sum", "X-Sum", "abc")(ctx)
		ctx.SetStatusCode(204)
	}},
	{name: "trailers and HTTP/1.0", proto: "HTTP/1.0", serve: trailing(false, "X-Sum", "X-Sum", "abc")},
	{name: "trailers and a stream of a known size over the limit", after: notKept, serve: func(ctx *fasthttp.RequestCtx) {
		trailing(false, "X-Sum", "X-Sum", "abc")(ctx)
		ctx.SetBodyStream(endlessTo(2<<20), 2<<20)
	}},
	{name: "a field that becomes a trailer", serve: withHeader(func(h *fasthttp.ResponseHeader) {
		h.Set("X-Sum", "abc")
		_ = h.AddTrailer("X-Sum")
	})},
	{name: "a trailer that becomes a field", serve: withHeader(func(h *fasthttp.ResponseHeader) {
		_ = h.AddTrailer("X-Sum")
		h.Set("X-Sum", "abc")
		h.Del("Trailer")
	})},
	{name: "names that are not normalized in trailers", server: plainNames, serve: trailing(false, "x-sum", "x-sum", "abc")},
}

func plainNames(s *fasthttp.Server) { s.DisableHeaderNamesNormalizing = true }

// sets returns a middleware that sets fields before the handler runs.
func sets(fields ...string) func(fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		return func(ctx *fasthttp.RequestCtx) {
			for i := 0; i < len(fields); i += 2 {
				ctx.Response.Header.Add(fields[i], fields[i+1])
			}
			next(ctx)
		}
	}
}

var outerCases = []handlerCase{
	{name: "CompressHandler outside", fields: "Accept-Encoding: gzip\n", outer: fasthttp.CompressHandler, serve: status(200, large)},
	{name: "CompressHandler on both sides", fields: "Accept-Encoding: gzip\n", outer: fasthttp.CompressHandler, serve: fasthttp.CompressHandler(status(200, large))},
	{name: "TimeoutHandler outside", serve: status(201, "in time", "X-Kept", "1"), outer: func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		return fasthttp.TimeoutHandler(next, time.Minute, "late")
	}},
	{name: "field of the outside left alone", outer: sets("X-Outer", "1", "X-Outer", "2"), serve: status(200, "", "X-Inner", "1")},
	{name: "field of the outside changed", outer: sets("X-Outer", "1", "X-Outer", "2"), serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Set("X-Outer", "3") })},
	{name: "field of the outside added to", outer: sets("X-Outer", "1", "X-Other", "1"), serve: status(200, "", "X-Outer", "2", "X-Outer", "3")},
	{name: "field of the outside deleted", outer: sets("X-Outer", "1", "X-Other", "1"), serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("X-Outer") })},
	{name: "type of the outside left alone", outer: sets("Content-Type", "text/html"), serve: status(200, "<html>")},
	{name: "type of the outside changed", outer: sets("Content-Type", "text/html"), serve: status(200, "{}", "Content-Type", "application/json")},
	{name: "type of the outside deleted", outer: sets("Content-Type", "text/html"), serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("Content-Type") })},
	{name: "coding of the outside deleted", outer: sets("Content-Encoding", "br"), serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("Content-Encoding") })},
	{name: "type of the outside deleted, and no default", outer: sets("Content-Type", "text/html"), server: func(s *fasthttp.Server) { s.NoDefaultContentType = true },
		serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("Content-Type") })},
	{name: "cookie of the outside", outer: sets("Set-Cookie", "a=1"), serve: status(200, "")},
	{name: "trailer of the outside", outer: sets("Trailer", "X-Sum", "X-Sum", "abc"), serve: status(200, "body")},
	{name: "trailer of the outside and one more", outer: sets("Trailer", "X-Sum", "X-Sum", "abc"), serve: withHeader(func(h *fasthttp.ResponseHeader) {
		_ = h.AddTrailer("X-Count")
		h.Set("X-Count", "1")
	})},
	{name: "Server of the outside", outer: sets("Server", "outer/1"), serve: status(200, "body")},
	{name: "status and body of the outside", serve: func(*fasthttp.RequestCtx) {}, outer: func(next fasthttp.RequestHandler) fasthttp.RequestHandler {
		return func(ctx *fasthttp.RequestCtx) {
			ctx.SetStatusCode(202)
			ctx.SetBodyString("set before")
			next(ctx)
		}
	}},
	{name: "everything cleared", outer: sets("X-Outer", "1", "Content-Type", "text/html"), serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Reset()
		ctx.SetBodyString("anew")
	}},
}

var serverCases = []handlerCase{
	{name: "names that are not normalized", server: plainNames, serve: status(200, "body", "x-lower-CASE", "1", "x-lower-case", "2", "etag", `"1"`, "content-type", "text/html", "SERVER", "own")},
	{name: "names that are not normalized and not kept", server: plainNames, drop: []string{"x-request-id", "AGE"}, serve: status(200, "body", "x-request-id", "1", "AGE", "1", "x-kept", "1")},
	{name: "names that are not normalized, of the outside", server: plainNames, outer: sets("x-outer", "1", "X-Outer", "2"),
		serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("x-outer") })},
	{name: "HTTP/1.0", proto: "HTTP/1.0", serve: status(201, "made")},
	{name: "HTTP/1.0, kept alive", proto: "HTTP/1.0", fields: "Connection: keep-alive\n", serve: status(201, "made")},
	{name: "HTTP/1.0, a stream", proto: "HTTP/1.0", serve: streamOf(-1, textOf("body"))},
	{name: "no names", server: func(s *fasthttp.Server) { s.NoDefaultServerHeader, s.NoDefaultDate = true, true }, serve: status(201, "made")},
	{name: "little memory", server: func(s *fasthttp.Server) { s.ReduceMemoryUsage = true }, serve: status(201, "made")},
	{name: "no keep-alive", server: func(s *fasthttp.Server) { s.DisableKeepalive = true }, serve: status(201, "made")},
	{name: "a stream of the request", server: func(s *fasthttp.Server) { s.StreamRequestBody = true }, serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStream(ctx.RequestBodyStream(), -1)
	}},
}

var heavyCases = []handlerCase{
	{name: "100 MiB of an unknown size", after: notKept, serve: streamOf(-1, func() io.Reader { return endlessTo(100 << 20) })},
	{name: "100 MiB of a known size", after: notKept, serve: streamOf(100<<20, func() io.Reader { return endlessTo(100 << 20) })},
}

// fileCases returns handlers that serve files, in a directory where fasthttp may leave compressed ones.
func fileCases(t *testing.T) []handlerCase {
	path := writeFile(t, 3000)
	return []handlerCase{
		{name: "ServeFile", serve: func(ctx *fasthttp.RequestCtx) { fasthttp.ServeFile(ctx, path) }},
		{name: "ServeFileBytes, compressed", fields: "Accept-Encoding: gzip\n", serve: func(ctx *fasthttp.RequestCtx) { fasthttp.ServeFileBytes(ctx, []byte(path)) }},
		{name: "ServeFile, a part", fields: "Range: bytes=10-19\n", serve: func(ctx *fasthttp.RequestCtx) { fasthttp.ServeFileUncompressed(ctx, path) }},
		{name: "ServeFile of none", serve: func(ctx *fasthttp.RequestCtx) { fasthttp.ServeFile(ctx, path+".none") }},
		{name: "SendFile", serve: func(ctx *fasthttp.RequestCtx) { _ = ctx.Response.SendFile(path) }},
	}
}

// writeFile returns the path of a file of so many bytes.
func writeFile(t *testing.T, size int) string {
	path := filepath.Join(t.TempDir(), "file.txt")
	file, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(file, endlessTo(int64(size)))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return path
}
