package fasthttpidem_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// statusOnly returns a handler that sets nothing but a status.
func statusOnly(code int) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(code) }
}

// withHeader returns a handler that does something with the header of a response that has a body.
func withHeader(change func(h *fasthttp.ResponseHeader)) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		change(&ctx.Response.Header)
		ctx.SetBodyString("body")
	}
}

// large is a body that is worth compressing.
var large = strings.Repeat("text ", 1000)

// gzipped returns text in the coding that it is named after.
func gzipped(text string) []byte {
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return body.Bytes()
}

var statusCases = []handlerCase{
	{name: "nothing", serve: func(*fasthttp.RequestCtx) {}},
	{name: "200 and a body", serve: status(200, "ok")},
	{name: "201 without a body", serve: status(201, "", "Location", "/payments/1", "Etag", `"1"`)},
	{name: "202", serve: status(202, "accepted")},
	{name: "204", serve: status(204, "", "X-Kept", "1")},
	{name: "204 with a type", serve: status(204, "", "Content-Type", "application/json")},
	{name: "204 with a body that is not sent", serve: status(204, "body")},
	{name: "204 with a stream that is not sent", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(204)
		ctx.SetBodyStream(strings.NewReader("body"), 4)
	}},
	{name: "205", serve: statusOnly(205)},
	{name: "206", serve: status(206, "art", "Content-Range", "bytes 1-3/4")},
	{name: "301", serve: status(301, "", "Location", "/payments/1")},
	{name: "303 with a body", serve: status(303, "see", "Location", "/payments/1")},
	{name: "304", serve: status(304, "", "Etag", `"1"`)},
	{name: "304 with a body that is not sent", serve: status(304, "body", "Content-Type", "text/html")},
	{name: "304 with a body that is not sent, and no type", serve: status(304, "body")},
	{name: "304 with a stream that is not sent, and no type", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(304)
		ctx.SetBodyStream(io.MultiReader(strings.NewReader("body")), -1)
	}},
	{name: "NotModified", serve: func(ctx *fasthttp.RequestCtx) { ctx.NotModified() }},
	{name: "400", serve: status(400, `{"error":"amount"}`, "Content-Type", "application/json")},
	{name: "NotFound", serve: func(ctx *fasthttp.RequestCtx) { ctx.NotFound() }},
	{name: "418", serve: status(418, "teapot")},
	{name: "500", serve: status(500, "broken")},
	{name: "503", serve: status(503, "later", "Retry-After", "7")},
	{name: "599", serve: status(599, "odd")},
	{name: "999", serve: status(999, "odder")},
	{name: "Redirect", serve: func(ctx *fasthttp.RequestCtx) { ctx.Redirect("/payments/1?b=2", 303) }},
	{name: "Error", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("X-Gone", "1")
		ctx.Error("no", 409)
	}},
	{name: "two statuses", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(500)
		ctx.SetStatusCode(201)
	}},
	{name: "103 then 201", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Add("Link", "</style.css>; rel=preload")
		ctx.Response.Header.Add("Link", "</script.js>; rel=preload")
		_ = ctx.EarlyHints()
		ctx.SetStatusCode(201)
		ctx.SetBodyString("created")
	}},
}

var headerCases = []handlerCase{
	{name: "values in order", serve: status(200, "", "Link", "<a>", "Link", "<b>", "X-Other", "1", "Link", "<c>, <d>")},
	{name: "values with others between", serve: status(200, "", "X-A", "1", "X-B", "1", "X-A", "2", "X-B", "2", "X-A", "3")},
	{name: "one value twice", serve: status(200, "", "X-A", "1", "X-A", "1")},
	{name: "commas and quotes", serve: status(200, "", "Content-Disposition", `attachment; filename="a, b: c"`)},
	{name: "empty value", serve: status(200, "", "X-Empty", "")},
	{name: "empty value among others", serve: status(200, "", "X-A", "1", "X-A", "", "X-A", "2")},
	{name: "bytes above 127", serve: status(200, "", "X-Name", "J\u00fcrgen \xff")},
	{name: "newlines in values", serve: status(200, "", "X-Line", "a\r\nX-Evil: b")},
	{name: "names in any case", serve: status(200, "", "x-lower-CASE", "1", "ETAG", `"1"`)},
	{name: "name that is not a name", drop: []string{"Bad Name"}, serve: status(200, "", "Bad Name", "1", "X-Kept", "1")},
	{name: "deleted again", serve: withHeader(func(h *fasthttp.ResponseHeader) {
		h.Set("X-Gone", "1")
		h.Set("X-Kept", "1")
		h.Del("X-Gone")
	})},
	{name: "changed", serve: withHeader(func(h *fasthttp.ResponseHeader) {
		h.Add("X-A", "1")
		h.Add("X-A", "2")
		h.Set("X-A", "3")
	})},
	{name: "Content-Type", serve: status(200, "{}", "Content-Type", "application/json; charset=utf-8")},
	{name: "Content-Type without a body", serve: status(200, "", "Content-Type", "application/json")},
	{name: "Content-Type by default", serve: status(200, "<html>")},
	{name: "the default Content-Type by wish", serve: status(200, "", "Content-Type", "text/plain; charset=utf-8")},
	{name: "no Content-Type by wish", serve: withHeader(func(h *fasthttp.ResponseHeader) { h.SetNoDefaultContentType(true) })},
	{name: "Content-Type that is deleted", serve: withHeader(func(h *fasthttp.ResponseHeader) {
		h.SetContentType("application/json")
		h.Del("Content-Type")
	})},
	{name: "Server by wish", serve: status(200, "", "Server", "teapot/1")},
	{name: "Server that is deleted", serve: withHeader(func(h *fasthttp.ResponseHeader) { h.Del("Server") })},
	{name: "cookies", drop: []string{"Set-Cookie"}, serve: status(200, "", "Set-Cookie", "a=1; expires=Wed, 21 Oct 2026 07:28:00 GMT", "Set-Cookie", "b=2", "X-Kept", "1")},
	{name: "cookies that are kept", keep: func(name string) bool { return name == "Set-Cookie" || httpidem.DefaultKeepHeader(name) },
		serve: withHeader(func(h *fasthttp.ResponseHeader) {
			for i := range 3 {
				var c fasthttp.Cookie
				c.SetKey(fmt.Sprint("c", i))
				c.SetValue("v")
				c.SetPath("/")
				c.SetHTTPOnly(true)
				h.SetCookie(&c)
			}
			h.DelClientCookie("c1")
		})},
	{name: "nothing is kept", keep: func(string) bool { return false }, drop: []string{"X-A", "Content-Type"}, serve: status(200, "", "X-A", "1", "Content-Type", "text/html")},
	{name: "challenge", drop: []string{"Www-Authenticate"}, serve: status(401, "", "WWW-Authenticate", "Basic")},
	{name: "age and request id", drop: []string{"Age", "X-Request-Id", "Proxy-Status"},
		serve: status(200, "", "Age", "5", "X-Request-Id", "r1", "Proxy-Status", "x", "X-Kept", "1")},
	{name: "connection close", drop: []string{"Connection"}, serve: status(200, "bye", "Connection", "close")},
	{name: "SetConnectionClose", drop: []string{"Connection"}, serve: func(ctx *fasthttp.RequestCtx) { ctx.SetConnectionClose() }},
	{name: "hop by hop", drop: []string{"Connection", "Keep-Alive", "X-Hop"},
		serve: status(200, "", "Connection", "close, X-Hop", "X-Hop", "1", "Keep-Alive", "timeout=5", "X-Kept", "1")},
	{name: "connection close, asked for", fields: "Connection: close\n", serve: status(200, "bye")},
}

var bodyCases = []handlerCase{
	{name: "every byte value", serve: func(ctx *fasthttp.RequestCtx) {
		for i := range 256 {
			_, _ = ctx.Write(bytes.Repeat([]byte{byte(i)}, 100))
		}
	}},
	{name: "Write and WriteString", serve: func(ctx *fasthttp.RequestCtx) {
		_, _ = ctx.WriteString("str")
		_, _ = ctx.Write([]byte("ing"))
		_, _ = fmt.Fprint(ctx, 1)
	}},
	{name: "SetBodyRaw", serve: func(ctx *fasthttp.RequestCtx) { ctx.Response.SetBodyRaw([]byte("raw")) }},
	{name: "SwapBody", serve: func(ctx *fasthttp.RequestCtx) { ctx.Response.SwapBody([]byte("swapped")) }},
	{name: "body that is taken back", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyString("body")
		ctx.ResetBody()
	}},
	{name: "Reset", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("X-Gone", "1")
		ctx.Response.Reset()
		ctx.SetBodyString("anew")
	}},
	{name: "another response, by CopyTo", serve: func(ctx *fasthttp.RequestCtx) {
		resp := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(resp)
		resp.SetStatusCode(201)
		resp.Header.Set("Location", "/payments/1")
		resp.SetBodyString("copy")
		resp.CopyTo(&ctx.Response)
	}},
	{name: "gzip", serve: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.SetContentEncoding("gzip")
		ctx.Response.Header.Set("Vary", "Accept-Encoding")
		ctx.SetBody(gzipped(large))
	}},
	{name: "CompressHandler", fields: "Accept-Encoding: gzip\n", serve: fasthttp.CompressHandler(status(200, large, "Content-Type", "text/html"))},
	{name: "CompressHandler of a stream", fields: "Accept-Encoding: gzip\n", serve: fasthttp.CompressHandler(func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStream(strings.NewReader(large), len(large))
	})},
	{name: "up to the limit", serve: status(200, strings.Repeat("a", 1<<20))},
	{name: "one byte more", after: notKept, serve: status(201, strings.Repeat("a", 1<<20+1))},
	{name: "4 MiB", after: notKept, serve: status(202, strings.Repeat("a", 4<<20))},
	{name: "echo", serve: func(ctx *fasthttp.RequestCtx) { ctx.SetBody(ctx.PostBody()) }},
	{name: "all of the request", fields: "Content-Type: application/x-www-form-urlencoded\n", serve: func(ctx *fasthttp.RequestCtx) {
		_, _ = fmt.Fprint(ctx, ctx.Request.String(), ctx.PostArgs(), ctx.QueryArgs())
	}},
}

// Whether a body without a type is given one is up to the server.
func TestDefaultTypeIsThatOfTheFirstServer(t *testing.T) {
	for _, byDefault := range []bool{false, true} {
		t.Run(fmt.Sprint("NoDefaultContentType=", !byDefault), func(t *testing.T) {
			var kinds []string
			for _, c := range headerCases {
				if !strings.Contains(c.name, "Content-Type") {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					c.server = func(s *fasthttp.Server) { s.NoDefaultContentType = !byDefault }
					runDifferential(t, c)
				})
				kinds = append(kinds, c.name)
			}
			require.GreaterOrEqual(t, len(kinds), 5)
		})
	}
}

// A file is read before it is sent if it may be kept, and else left alone.
func TestFiles(t *testing.T) {
	for size, after := range map[int]aftermath{0: replayed, 1: replayed, 1 << 20: replayed, 1<<20 + 1: notKept, 8 << 20: notKept} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			path := writeFile(t, size)
			runDifferential(t, handlerCase{after: after, serve: func(ctx *fasthttp.RequestCtx) {
				if err := ctx.Response.SendFile(path); err != nil {
					panic(err)
				}
				ctx.Response.Header.SetLastModified(time.Unix(1e9, 0))
			}})
			runDifferential(t, handlerCase{after: after, serve: func(ctx *fasthttp.RequestCtx) { ctx.SendFile(path) }})
		})
	}
}
