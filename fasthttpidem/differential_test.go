package fasthttpidem_test

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// What a handler leaves under its key, see TestDifferential.
type aftermath int

const (
	replayed  aftermath = iota // the second request gets what the first got
	notKept                    // the second request is answered 410
	runsAgain                  // the key is free
)

// A handlerCase is a handler that fasthttp treats in some way of its own.
type handlerCase struct {
	name     string
	after    aftermath
	original int      // the status that a 410 tells of, if it is not that of the first answer
	drop     []string // fields and trailers of the first answer that a replay must not have
	proto    string   // HTTP/1.1 if it is empty
	fields   string   // of the request, a line each
	server   func(*fasthttp.Server)
	outer    func(fasthttp.RequestHandler) fasthttp.RequestHandler
	keep     func(name string) bool // Config.KeepHeader
	serve    fasthttp.RequestHandler
}

// TestDifferential serves every handler bare and through the middleware, over real connections. The first
// answer has the same lines and bytes, but for the time, and so has the replay but for its marker and the order
// of lines.
//
// A replay knows its length, so it has a Content-Length where the first answer was a stream that did not.
func TestDifferential(t *testing.T) {
	cases := slices.Concat(statusCases, headerCases, bodyCases, streamCases, trailerCases, outerCases, serverCases, fileCases(t))
	require.GreaterOrEqual(t, len(cases), 80)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runDifferential(t, c)
		})
	}
}

func TestHeavyDifferential(t *testing.T) {
	for _, c := range heavyCases {
		t.Run(c.name, func(t *testing.T) { runDifferential(t, c) })
	}
}

func runDifferential(t *testing.T, c handlerCase) {
	var runs atomic.Int32
	store := newEngine(t, idem.Config{MaxResponseBytes: 2 << 20}) // whose limit is not the one to test
	middleware := guardWith(t, store, fasthttpidem.Config{Policy: httpidem.StoreAll, KeepHeader: c.keep})
	bareHandler, guarded := c.serve, middleware(counted(&runs, c.serve))
	if c.outer != nil {
		bareHandler, guarded = c.outer(bareHandler), c.outer(guarded)
	}
	option := func(s *fasthttp.Server) {
		if c.server != nil {
			c.server(s)
		}
	}
	text := "POST /payments?a=1 " + cmp.Or(c.proto, "HTTP/1.1") + "\nHost: x\nIdempotency-Key: key\nContent-Length: 4\n" + c.fields + "\nbody"
	server := startServer(t, guarded, option)

	bare := startServer(t, bareHandler, option).exchange(t, text)
	first := server.exchange(t, text)
	require.Equal(t, bare.withoutDate(), first.withoutDate(), "first answer")
	require.EqualValues(t, 1, runs.Load())

	// On one connection, which a replay must not leave in the middle of something.
	again := server.dial(t)
	again.send(text)
	second := again.answer()
	if !second.closes {
		again.send(text)
		require.Equal(t, second.withoutDate(), again.answer().withoutDate(), "second replay")
	}
	if c.after == runsAgain {
		require.Greater(t, runs.Load(), int32(1))
		require.Equal(t, first.withoutDate(), second.withoutDate())
		return
	}
	require.EqualValues(t, 1, runs.Load())
	if c.after == notKept {
		members := requireProblem(t, second, http.StatusGone, httpidem.CodeResponseNotRetained)
		require.EqualValues(t, cmp.Or(c.original, first.status), members["original_status"])
		return
	}
	require.Equal(t, "true", second.get("Idempotency-Replayed"))
	requireReplay(t, first, second, c.drop)
}

// requireReplay compares a replay with the first answer.
func requireReplay(t *testing.T, first, second answer, drop []string) {
	t.Helper()
	require.Empty(t, second.interim, "informational answers are not the result")
	delete(second.header, "Idempotency-Replayed")
	for _, name := range drop {
		if first.trailer.Get(name) != "" {
			first.trailer[name] = nil // it is announced all the same
			continue
		}
		require.Contains(t, first.header, name)
		require.NotContains(t, second.header, name)
		delete(first.header, name)
	}
	if first.length != second.length {
		require.EqualValues(t, -1, first.length, "the length may become known, but not change")
		delete(first.header, "Transfer-Encoding")
		delete(second.header, "Content-Length")
	}
	for _, a := range []answer{first, second} {
		delete(a.header, "Date")
	}
	require.Equal(t, first.status, second.status)
	require.Equal(t, first.header, second.header, "replay")
	require.Equal(t, first.body, second.body)
	require.Equal(t, first.trailer, second.trailer)
	require.False(t, second.failed)
}

// withoutDate removes what Date says, but not the knowledge whether there is one.
func (a answer) withoutDate() answer {
	a.lines = slices.Clone(a.lines)
	for i, line := range a.lines {
		if strings.HasPrefix(line, "Date: ") {
			a.lines[i] = "Date: some"
		}
	}
	a.header = nil // the same as lines
	return a
}

// Two servers with names of their own replay each other's records, and each says who it is.
func TestServerSaysItsOwnName(t *testing.T) {
	store := newEngine(t, idem.Config{})
	for i, name := range []string{"one", "two"} {
		h := guardWith(t, store, fasthttpidem.Config{})(status(201, "made"))
		server := startServer(t, h, func(s *fasthttp.Server) { s.Name = name })
		a := post(t, server, "k", "")
		require.Equal(t, name, a.get("Server"))
		require.Equal(t, i == 1, a.get("Idempotency-Replayed") == "true")
	}
}

// A stream that says how long it is becomes bytes, with which fasthttp sends the trailers that it would have left out.
func TestTrailersOfAStreamOfAKnownSize(t *testing.T) {
	server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		trailing(false, "X-Sum", "X-Sum", "abc")(ctx)
		ctx.SetBodyStream(strings.NewReader("body"), 4)
	}))
	first, again := post(t, server, "k", ""), post(t, server, "k", "")
	require.Equal(t, http.Header{"X-Sum": {"abc"}}, first.trailer)
	require.Equal(t, "true", again.get("Idempotency-Replayed"))
	requireReplay(t, first, again, nil)
}

// Ten requests on one connection, sent at once, are answered in order.
func TestPipelinedRequests(t *testing.T) {
	h := guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		if string(ctx.PostBody()) == "3" {
			ctx.SetBodyStream(strings.NewReader("3"), -1)
			return
		}
		ctx.SetBody(ctx.PostBody())
	})
	conn := startServer(t, h).dial(t)
	var text strings.Builder
	for range 2 {
		for i := range 5 {
			text.WriteString(postText(fmt.Sprint("k", i), fmt.Sprint(i)))
		}
	}
	conn.sendRaw(text.String())
	for round := range 2 {
		for i := range 5 {
			a := conn.answer()
			require.Equal(t, fmt.Sprint(i), a.body)
			require.Equal(t, round == 1, a.get("Idempotency-Replayed") == "true")
		}
	}
}

// Buffers are used again, and nobody may see another request in them.
func TestResponsesDoNotMix(t *testing.T) {
	var kept [][]byte
	h := guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		body := []byte(strings.Repeat(string(ctx.PostBody()), 50))
		kept = append(kept, body)
		ctx.Response.SetBodyRaw(body)
		ctx.Response.Header.Set("X-Name", string(ctx.PostBody()))
	})
	server := startServer(t, h)
	for i := range 20 {
		name := fmt.Sprint("name", i)
		require.Equal(t, strings.Repeat(name, 50), post(t, server, name, name).body)
		for _, body := range kept {
			clear(body) // the handler's own memory, which was sent
		}
		for j := range i + 1 {
			old := fmt.Sprint("name", j)
			a := post(t, server, old, old)
			requireReplayed(t, a, 200, strings.Repeat(old, 50))
			require.Equal(t, old, a.get("X-Name"))
		}
	}
}
