package fasthttpidem_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// Bits of what a response is like, see FuzzReplay.
const (
	aStream = 1 << iota
	ofKnownSize
	noDefaultType
	notNormalized
	http10
)

// change does with a header what lines say: "-name" deletes, "=name: value" sets, "^name" announces a trailer, and "name: value" adds.
func change(h *fasthttp.ResponseHeader, lines string) {
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case name == "" || !httpwire.IsToken(strings.TrimLeft(name, "-=^")): // what is no name is not recorded: TestDifferential
		case name[0] == '-':
			h.Del(name[1:])
		case name[0] == '=':
			h.Set(name[1:], value)
		case name[0] == '^':
			_ = h.AddTrailer(name[1:])
		default:
			h.Add(name, value)
		}
	}
}

// expected returns what of an answer is recorded and replayed.
func expected(a answer) map[string][]string {
	header := map[string][]string{}
	connection := strings.Join(a.header["Connection"], ",")
	for name, values := range a.header {
		if httpwire.IsRecordable(name, connection, httpidem.DefaultKeepHeader) && !strings.EqualFold(name, "Content-Length") {
			header[name] = values
		}
	}
	return header
}

// FuzzReplay: whatever a handler and a middleware around it do with the header, the first answer is what it is without the
// middleware, and a replay is the same.
func FuzzReplay(f *testing.F) {
	f.Add(uint16(200), byte(0), "", "Content-Type: a/b\nX-A: 1\nX-B: 2\nX-A: 2", []byte("body"))
	f.Add(uint16(204), byte(noDefaultType), "X-A: 1\nX-A: 2\nServer: s", "=X-A: 3\n-Server\nSet-Cookie: a=b", []byte("body"))
	f.Add(uint16(500), byte(aStream), "Content-Type: a/b", "-Content-Type\n^X-Sum\nX-Sum: 1\nX-Sum: 2", []byte("body"))
	f.Add(uint16(304), byte(aStream|ofKnownSize), "", "Connection: close, X-A\nX-A: 1", []byte(""))
	f.Add(uint16(201), byte(notNormalized|http10), "x-a: 1", "X-A: 1\nx-A: 1\ncontent-type: a/b\ncontent-encoding: gzip", []byte("\r\n\r\n"))
	f.Fuzz(func(t *testing.T, code uint16, how byte, outside, inside string, body []byte) {
		handler := func(ctx *fasthttp.RequestCtx) {
			change(&ctx.Response.Header, inside)
			ctx.SetStatusCode(200 + int(code%800))
			switch {
			case how&aStream == 0:
				ctx.SetBody(body)
			case how&ofKnownSize != 0:
				ctx.SetBodyStream(strings.NewReader(string(body)), len(body))
			default:
				ctx.SetBodyStream(io.MultiReader(strings.NewReader(string(body))), -1)
			}
		}
		store := newEngine(t, idem.Config{MaxResponseBytes: 2 << 20})
		guarded := guardWith(t, store, fasthttpidem.Config{Policy: httpidem.StoreAll})(handler)
		serve := func(inner fasthttp.RequestHandler) answer {
			req := newRequest("k", "")
			if how&http10 != 0 {
				req.Header.SetProtocol("HTTP/1.0")
			}
			return inProcess(t, func(ctx *fasthttp.RequestCtx) {
				h := &ctx.Response.Header
				if how&notNormalized != 0 {
					h.DisableNormalizing()
				}
				h.SetNoDefaultContentType(how&noDefaultType != 0)
				change(h, outside)
				inner(ctx)
			}, req)
		}
		bare := serve(handler)
		if bare.failed {
			return // no client can read it
		}
		if bare.header["Trailer"] != nil && how&ofKnownSize != 0 {
			return // see TestTrailersOfAStreamOfAKnownSize
		}
		first := serve(guarded)
		require.Equal(t, bare.withoutDate(), first.withoutDate())
		again := serve(guarded)
		require.Equal(t, "true", again.get("Idempotency-Replayed"))
		delete(again.header, "Idempotency-Replayed")
		require.Equal(t, first.status, again.status)
		require.Equal(t, first.body, again.body)
		require.Equal(t, first.trailer, again.trailer)
		require.Equal(t, expected(first), expected(again))
		require.False(t, again.failed)
	})
}
