package fasthttpidem_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

func streamedBody(s *fasthttp.Server) { s.StreamRequestBody = true }

// readers are ways in which a handler may read the body.
var readers = map[string]func(ctx *fasthttp.RequestCtx) []byte{
	"PostBody": func(ctx *fasthttp.RequestCtx) []byte { return ctx.PostBody() },
	"PostBody twice": func(ctx *fasthttp.RequestCtx) []byte {
		ctx.PostBody()
		return ctx.PostBody()
	},
	"RequestBodyStream": func(ctx *fasthttp.RequestCtx) []byte {
		if ctx.RequestBodyStream() == nil {
			return ctx.PostBody() // of a server that does not stream
		}
		body, err := io.ReadAll(ctx.RequestBodyStream())
		if err != nil {
			panic(err)
		}
		return body
	},
	"BodyWriteTo": func(ctx *fasthttp.RequestCtx) []byte {
		var body bytes.Buffer
		if err := ctx.Request.BodyWriteTo(&body); err != nil {
			panic(err)
		}
		return body.Bytes()
	},
}

// chunkedText returns the bytes of a request whose body comes in chunks of a few bytes, with a trailer.
func chunkedText(key, body string, fields ...string) string {
	text := strings.Replace(postText(key, "", fields...), "Content-Length: 0", "Transfer-Encoding: chunked", 1)
	for i := 0; i < len(body); i += 1000 {
		chunk := body[i:min(len(body), i+1000)]
		text += fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
	}
	return text + "0\r\n\r\n"
}

// framings are ways in which a body may be sent.
var framings = map[string]func(key, body string, fields ...string) string{"with a length": postText, "chunked": chunkedText}

func TestHandlerGetsTheBodyAsItWas(t *testing.T) {
	for name, option := range map[string]func(*fasthttp.Server){"read": func(*fasthttp.Server) {}, "streamed": streamedBody} {
		for how, read := range readers {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				store := newEngine(t, idem.Config{MaxResponseBytes: 2 << 20})
				server := startServer(t, guardWith(t, store, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
					isStream := ctx.Request.IsBodyStream()
					ctx.SetBody(read(ctx))
					ctx.Response.Header.Set("X-Stream", fmt.Sprint(isStream))
				}), option)
				for framing, frame := range framings {
					for i, body := range []string{"", "\x00\xffbody", large, strings.Repeat("x", 1<<20)} {
						conn := server.dial(t)
						for round := range 2 {
							conn.sendRaw(frame(fmt.Sprintf("%.4s%d", framing, i), body))
							a := conn.answer()
							require.Equal(t, 200, a.status)
							require.Equal(t, len(body), int(a.length))
							require.Equal(t, body[:min(len(body), 4000)], a.body[:min(len(body), 4000)])
							require.Equal(t, round == 1, a.get("Idempotency-Replayed") == "true")
							require.Equal(t, name == "streamed", a.get("X-Stream") == "true")
						}
					}
				}
			})
		}
	}
}

// A body may be sent with its length or in chunks, whichever the client likes for the attempt.
func TestFramingIsNotPartOfTheRequest(t *testing.T) {
	for _, option := range []func(*fasthttp.Server){streamedBody, func(*fasthttp.Server) {}} {
		server := startServer(t, guard(t, fasthttpidem.Config{})(status(201, "made")), option)
		for _, body := range []string{"", "body"} {
			conn := server.dial(t)
			conn.sendRaw(postText("k"+body, body))
			require.Equal(t, 201, conn.answer().status)
			conn.sendRaw(chunkedText("k"+body, body))
			requireReplayed(t, conn.answer(), 201, "made")
			conn.sendRaw(chunkedText("k"+body, body+"x"))
			requireProblem(t, conn.answer(), 422, httpidem.CodeKeyReused)
		}
	}
}

func TestRequestLimit(t *testing.T) {
	for name, option := range map[string]func(*fasthttp.Server){"read": func(*fasthttp.Server) {}, "streamed": streamedBody} {
		for framing, frame := range framings {
			for size, want := range map[int]int{0: 201, 99: 201, 100: 201, 101: 413, 5000: 413, 200_000: 413, 2 << 20: 413} {
				t.Run(fmt.Sprint(name, " ", framing, " ", size), func(t *testing.T) {
					t.Parallel()
					var runs atomic.Int32
					server := startServer(t, guard(t, fasthttpidem.Config{MaxRequestBytes: 100})(counted(&runs, status(201, ""))), option)
					conn := server.dial(t)
					go func() { _, _ = io.WriteString(conn, frame("k", strings.Repeat("x", size))) }()
					a := conn.answer()
					require.Equal(t, want, a.status)
					if want == 413 {
						requireProblem(t, a, 413, httpidem.CodeRequestTooLarge)
						require.Zero(t, runs.Load())
					}
					if !a.closes && size <= 200_000 {
						conn.sendRaw(frame("k2", "next"))
						require.Equal(t, 201, conn.answer().status, "the next request on the connection")
					}
				})
			}
		}
	}
}

// The server's own limit comes first, and its answer is not the middleware's.
func TestRequestLimitOfTheServer(t *testing.T) {
	for framing, frame := range framings {
		var runs atomic.Int32
		server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, status(201, ""))), func(s *fasthttp.Server) { s.MaxRequestBodySize = 100 })
		conn := server.dial(t)
		conn.sendRaw(frame("k", strings.Repeat("x", 101)))
		a := conn.answer()
		require.Contains(t, []int{400, 413}, a.status)
		require.NotEqual(t, "application/problem+json", a.get("Content-Type"))
		require.Zero(t, runs.Load())
		require.Equal(t, 201, post(t, server, "k", "x").status, framing)
	}
}

func TestBodyThatIsSentInPart(t *testing.T) {
	for name, text := range map[string]string{
		"with a length":           "Content-Length: 8\n\nhalf",
		"of nothing":              "Content-Length: 8\n\n",
		"chunked":                 "Transfer-Encoding: chunked\n\n8\nhalf",
		"chunked, without an end": "Transfer-Encoding: chunked\n\n4\nhalf\n",
	} {
		for _, option := range []func(*fasthttp.Server){streamedBody, func(*fasthttp.Server) {}} {
			t.Run(name, func(t *testing.T) {
				var runs atomic.Int32
				server := startServer(t, guard(t, fasthttpidem.Config{FailOpen: true})(counted(&runs, status(201, ""))), option)
				conn := server.dial(t)
				conn.send("POST /payments HTTP/1.1\nHost: x\nIdempotency-Key: k\n" + text)
				tcp, ok := conn.Conn.(*net.TCPConn)
				require.True(t, ok)
				require.NoError(t, tcp.CloseWrite())
				require.Contains(t, []int{0, 400}, conn.answer().status, "the server may not answer at all")
				require.Zero(t, runs.Load())
				require.Equal(t, 201, post(t, server, "k", "whole").status, "the key was not claimed")
			})
		}
	}
}

// A slow body claims nothing until it is there.
func TestSlowBody(t *testing.T) {
	for _, option := range []func(*fasthttp.Server){streamedBody, func(*fasthttp.Server) {}} {
		server := startServer(t, guard(t, fasthttpidem.Config{})(status(201, "made")), option)
		text := postText("k", "abcd")
		slow := server.dial(t)
		slow.sendRaw(text[:len(text)-2])
		require.Equal(t, 201, post(t, server, "k", "abcd").status)
		slow.sendRaw(text[len(text)-2:])
		requireReplayed(t, slow.answer(), 201, "made")
	}
}

func TestExpectContinue(t *testing.T) {
	for name, option := range map[string]func(*fasthttp.Server){"read": func(*fasthttp.Server) {}, "streamed": streamedBody} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) { ctx.SetBody(ctx.PostBody()) }), option)
			for round := range 2 {
				conn := server.dial(t)
				conn.send("POST / HTTP/1.1\nHost: x\nIdempotency-Key: k\nContent-Length: 4\nExpect: 100-continue\n\n")
				line, err := conn.r.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
				_, err = conn.r.ReadString('\n')
				require.NoError(t, err)
				conn.send("abcd")
				a := conn.answer()
				require.Equal(t, "abcd", a.body)
				require.Equal(t, round == 1, a.get("Idempotency-Replayed") == "true")
			}
		})
		t.Run(name+", refused by the server", func(t *testing.T) {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, status(201, ""))), option, func(s *fasthttp.Server) {
				s.ContinueHandler = func(*fasthttp.RequestHeader) bool { return false }
			})
			require.Equal(t, 417, server.exchange(t, "POST / HTTP/1.1\nHost: x\nIdempotency-Key: k\nContent-Length: 4\nExpect: 100-continue\n\n").status)
			require.Zero(t, runs.Load())
		})
	}
}

// consumers are what may be done with a streamed body before the middleware sees it. Of one in chunks nobody can tell
// how much is missing.
var consumers = []struct {
	name    string
	chunked bool
	refused bool
	before  func(ctx *fasthttp.RequestCtx)
}{
	{"nothing", false, false, func(*fasthttp.RequestCtx) {}},
	{"nothing, chunked", true, false, func(*fasthttp.RequestCtx) {}},
	{"PostBody", false, false, func(ctx *fasthttp.RequestCtx) { ctx.PostBody() }},
	{"PostBody, chunked", true, false, func(ctx *fasthttp.RequestCtx) { ctx.PostBody() }},
	{"FormValue", false, false, func(ctx *fasthttp.RequestCtx) { ctx.FormValue("a") }},
	{"one byte", false, true, func(ctx *fasthttp.RequestCtx) { _, _ = ctx.RequestBodyStream().Read(make([]byte, 1)) }},
	{"all of it", false, true, func(ctx *fasthttp.RequestCtx) { _, _ = io.Copy(io.Discard, ctx.RequestBodyStream()) }},
	{"one byte, and PostBody", false, true, func(ctx *fasthttp.RequestCtx) {
		_, _ = ctx.RequestBodyStream().Read(make([]byte, 1))
		ctx.PostBody()
	}},
	{"closed", false, true, func(ctx *fasthttp.RequestCtx) { _ = ctx.Request.CloseBodyStream() }},
	{"put back", false, false, func(ctx *fasthttp.RequestCtx) {
		body, _ := io.ReadAll(ctx.RequestBodyStream())
		ctx.Request.SetBodyStream(bytes.NewReader(body), len(body))
	}},
	{"put back as bytes", true, false, func(ctx *fasthttp.RequestCtx) {
		body, _ := io.ReadAll(ctx.RequestBodyStream())
		ctx.Request.SetBody(body)
	}},
}

func TestBodyThatSomebodyHasReadBefore(t *testing.T) {
	body := strings.Repeat("a=1&", 5000) // more than is read ahead
	for _, c := range consumers {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			var runs atomic.Int32
			h := guard(t, fasthttpidem.Config{FailOpen: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				_, _ = fmt.Fprint(ctx, len(ctx.PostBody()))
			}))
			server := startServer(t, func(ctx *fasthttp.RequestCtx) {
				c.before(ctx)
				h(ctx)
			}, streamedBody)
			frame := postText
			if c.chunked {
				frame = chunkedText
			}
			send := func() answer {
				conn := server.dial(t)
				conn.sendRaw(frame("secret-key", body, "Content-Type", "application/x-www-form-urlencoded"))
				return conn.answer()
			}
			if !c.refused {
				require.Equal(t, fmt.Sprint(len(body)), send().body)
				requireReplayed(t, send(), 200, fmt.Sprint(len(body)))
				return
			}
			requireProblem(t, send(), 400, httpidem.CodeRequestInvalid)
			require.Zero(t, runs.Load())
			require.Contains(t, log.String(), "level=ERROR")
			require.NotContains(t, log.String(), "secret-key")
		})
	}
}

// The bytes of the body count, in whatever coding they are.
func TestCodingOfTheBodyIsLeftAlone(t *testing.T) {
	for _, option := range []func(*fasthttp.Server){streamedBody, func(*fasthttp.Server) {}} {
		server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
			body, err := ctx.Request.BodyGunzip()
			if err != nil {
				panic(err)
			}
			ctx.SetBody(body)
		}), option)
		require.Equal(t, "text", post(t, server, "k", string(gzipped("text")), "Content-Encoding", "gzip").body)
		requireReplayed(t, post(t, server, "k", string(gzipped("text")), "Content-Encoding", "gzip"), 200, "text")
		requireProblem(t, post(t, server, "k", string(gzipped("texT")), "Content-Encoding", "gzip"), 422, httpidem.CodeKeyReused)
	}
}

func TestOtherRequestUnderTheKeyIsRefused(t *testing.T) {
	first := [3]string{"POST", "/payments?dry_run=1", "body"}
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, status(201, "answer"))))
	send := func(request [3]string) answer {
		return server.exchange(t, fmt.Sprintf("%s %s HTTP/1.1\nHost: x\nIdempotency-Key: k\nContent-Length: %d\n\n%s", request[0], request[1], len(request[2]), request[2]))
	}
	require.Equal(t, 201, send(first).status)
	for name, other := range map[string][3]string{
		"method":     {"PUT", first[1], first[2]},
		"path":       {first[0], "/payments/?dry_run=1", first[2]},
		"slashes":    {first[0], "//payments?dry_run=1", first[2]},
		"dots":       {first[0], "/./payments?dry_run=1", first[2]},
		"query":      {first[0], "/payments", first[2]},
		"body":       {first[0], first[1], "bodY"},
		"no body":    {first[0], first[1], ""},
		"other cut":  {first[0], "/payments?dry_run=", "1body"},
		"escaping":   {first[0], "/p%61yments?dry_run=1", first[2]},
		"longer":     {first[0], first[1], "body "},
		"big prefix": {first[0], first[1], "body" + strings.Repeat("x", 1<<20-4)},
	} {
		t.Run(name, func(t *testing.T) { requireProblem(t, send(other), 422, httpidem.CodeKeyReused) })
	}
	requireReplayed(t, send(first), 201, "answer")
	require.EqualValues(t, 1, runs.Load())
}

func TestFingerprintOfTheUser(t *testing.T) {
	for name, option := range map[string]func(*fasthttp.Server){"read": func(*fasthttp.Server) {}, "streamed": streamedBody} {
		t.Run("decides, "+name, func(t *testing.T) {
			server := startServer(t, guard(t, fasthttpidem.Config{Fingerprint: func(ctx *fasthttp.RequestCtx, body []byte) (idem.Fingerprint, error) {
				return idem.FingerprintOf(body[:1]), nil
			}})(func(ctx *fasthttp.RequestCtx) { ctx.SetBody(ctx.PostBody()) }), option)
			require.Equal(t, "ab", post(t, server, "k", "ab").body)
			requireReplayed(t, post(t, server, "k", "ac"), 200, "ab")
			requireProblem(t, post(t, server, "k", "bc"), 422, httpidem.CodeKeyReused)
		})
	}
	for _, test := range []struct {
		err    error
		status int
		code   string
	}{
		{errors.New("secret"), 400, httpidem.CodeRequestInvalid},
		{fmt.Errorf("wrapped: %w", &httpidem.Problem{Status: 415, Code: "only_xml"}), 415, "only_xml"},
	} {
		var runs atomic.Int32
		h := guard(t, fasthttpidem.Config{Fingerprint: func(*fasthttp.RequestCtx, []byte) (idem.Fingerprint, error) {
			return idem.Fingerprint{}, test.err
		}})(counted(&runs, status(201, "")))
		a := inProcess(t, h, newRequest("k", ""))
		requireProblem(t, a, test.status, test.code)
		require.NotContains(t, a.body, "secret")
		require.Zero(t, runs.Load())
	}
}
