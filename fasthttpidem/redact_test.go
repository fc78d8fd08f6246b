package fasthttpidem_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// redact hides a token that is in the body, a field and a trailer, and takes a field away.
func redact(resp *fasthttp.Response) {
	resp.SetBodyString(strings.ReplaceAll(string(resp.Body()), "secret", "***"))
	if len(resp.Header.Peek("X-Token")) > 0 {
		resp.Header.Set("X-Token", "***")
	}
	resp.Header.Del("X-Gone")
	resp.Header.Add("X-Redacted", "1")
}

// redactCases are handlers whose answer has a secret.
var redactCases = map[string]fasthttp.RequestHandler{
	"bytes": status(201, "the secret", "X-Token", "secret", "X-Gone", "1", "X-Kept", "1"),
	"raw bytes": func(ctx *fasthttp.RequestCtx) {
		status(201, "", "X-Token", "secret", "X-Gone", "1", "X-Kept", "1")(ctx)
		ctx.Response.SetBodyRaw([]byte("the secret"))
	},
	"a stream of a known size": func(ctx *fasthttp.RequestCtx) {
		status(201, "", "X-Token", "secret", "X-Gone", "1", "X-Kept", "1")(ctx)
		ctx.SetBodyStream(strings.NewReader("the secret"), 10)
	},
	"a stream of an unknown size": func(ctx *fasthttp.RequestCtx) {
		status(201, "", "X-Token", "secret", "X-Gone", "1", "X-Kept", "1")(ctx)
		ctx.SetBodyStream(io.MultiReader(strings.NewReader("the secret")), -1)
	},
	"trailers": func(ctx *fasthttp.RequestCtx) {
		_ = ctx.Response.Header.SetTrailer("X-Token")
		status(201, "the secret", "X-Token", "secret", "X-Gone", "1", "X-Kept", "1")(ctx)
	},
}

// The first client gets the response as it was. What is stored is another, for servers of either kind.
func TestRedact(t *testing.T) {
	for name, h := range redactCases {
		t.Run(name, func(t *testing.T) {
			store := newEngine(t, idem.Config{})
			fast := startServer(t, guardWith(t, store, fasthttpidem.Config{Redact: redact})(h))
			classic := startNetHTTP(t, store, httpidem.Config{}, nil)
			token := func(a answer) string { return a.get("X-Token") + a.trailer.Get("X-Token") }
			first := post(t, fast, "k", "body")
			require.Equal(t, "the secret", first.body)
			require.Equal(t, "secret", token(first))
			require.Equal(t, "1", first.get("X-Gone"))
			require.Empty(t, first.get("X-Redacted"))
			for _, server := range []*testServer{fast, classic} {
				again := post(t, server, "k", "body")
				requireReplayed(t, again, 201, "the ***")
				require.Equal(t, "***", token(again))
				require.NotContains(t, again.header, "X-Gone")
				require.Equal(t, "1", again.get("X-Kept"))
				require.Equal(t, "1", again.get("X-Redacted"))
				require.False(t, again.failed)
			}
		})
	}
}

// Redact sees what a middleware around this one has set as well, and may set what the handler took away.
func TestRedactAndTheFieldsOfTheOutside(t *testing.T) {
	h := guard(t, fasthttpidem.Config{Redact: func(resp *fasthttp.Response) {
		if len(resp.Header.Peek("Cache-Control")) > 0 {
			panic("the handler took it away")
		}
		resp.Header.Set("Cache-Control", "private")
		resp.Header.Del("X-Outer")
	}})(withHeader(func(h *fasthttp.ResponseHeader) { h.Del("Cache-Control") }))
	server := startServer(t, sets("Cache-Control", "no-store", "X-Outer", "1", "X-Other", "1")(h))
	first, again := post(t, server, "k", ""), post(t, server, "k", "")
	require.Empty(t, first.get("Cache-Control"))
	require.Equal(t, "1", first.get("X-Outer"))
	require.Equal(t, []string{"private"}, again.header["Cache-Control"])
	require.NotContains(t, again.header, "X-Outer", "it was taken away")
	require.Equal(t, "1", again.get("X-Other"))
}

// A record that a handler makes itself is that of its response, without what is of one exchange or one client.
func TestNewResponse(t *testing.T) {
	var resp fasthttp.Response
	require.NoError(t, resp.Header.SetTrailer("X-Sum"))
	for name, value := range map[string]string{"Location": "/payments/1", "Set-Cookie": "a=1", "X-Sum": "abc", "X-Request-Id": "r1", "Connection": "close"} {
		resp.Header.Set(name, value)
	}
	resp.SetStatusCode(http.StatusCreated)
	resp.SetBodyString("made")
	record := fasthttpidem.NewResponse(&resp)
	require.Equal(t, http.StatusCreated, record.Status)
	require.Equal(t, "made", string(record.Body))
	require.Equal(t, []string{
		"", "", "Content-Type: text/plain; charset=utf-8", "Location: /payments/1", "Trailer: X-Sum", "X-Sum: abc",
	}, slices.Sorted(strings.SplitSeq(string(record.Header), "\r\n")))

	resp.SetStatusCode(http.StatusNoContent)
	require.Empty(t, fasthttpidem.NewResponse(&resp).Body)
}
