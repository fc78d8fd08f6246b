package fasthttpidem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

const docs = "https://docs.example/keys"

func TestProblems(t *testing.T) {
	for _, test := range httpcases.Answers {
		t.Run(test.Name, func(t *testing.T) {
			send := func(conf fasthttpidem.Config) answer {
				conf.MaxRequestBytes = 10
				var runs atomic.Int32
				server := startServer(t, guardWith(t, httpcases.OutcomeStore{Outcome: test.Outcome, Err: test.Err}, conf)(counted(&runs, status(200, ""))))
				var fields strings.Builder
				for _, key := range test.Keys {
					fields.WriteString("Idempotency-Key: " + key + "\n")
				}
				a := server.exchange(t, fmt.Sprintf("POST /payments HTTP/1.1\nHost: x\nContent-Length: %d\n%s\n%s", len(test.Body), &fields, test.Body))
				require.Zero(t, runs.Load())
				require.Equal(t, test.RetryAfter, a.get("Retry-After"))
				return a
			}
			plain := send(fasthttpidem.Config{})
			members := requireProblem(t, plain, test.Status, test.Code)
			require.Equal(t, "about:blank", members["type"])
			require.NotEmpty(t, members["detail"])
			require.Empty(t, plain.get("Link"))
			if test.Original != 0 {
				require.EqualValues(t, test.Original, members["original_status"])
			} else {
				require.NotContains(t, members, "original_status")
			}

			documented := send(fasthttpidem.Config{DocsURL: docs})
			require.Equal(t, []string{"<" + docs + `>; rel="describedby"`}, documented.header["Link"])
			require.Equal(t, docs+"#"+test.Code, requireProblem(t, documented, test.Status, test.Code)["type"])

			own := send(fasthttpidem.Config{DocsURL: docs, ErrorHandler: func(ctx *fasthttp.RequestCtx, p *httpidem.Problem) {
				assert.Equal(t, "/payments", string(ctx.Path()))
				assert.Equal(t, test.Original, p.OriginalStatus)
				ctx.SetStatusCode(p.Status)
				ctx.SetBodyString(p.Code)
			}})
			require.Equal(t, test.Status, own.status)
			require.Equal(t, test.Code, own.body)
			require.NotEmpty(t, own.get("Link"))
		})
	}
}

// In progress for ever: clients get a number that they can read.
func TestRetryAfterHasAnEnd(t *testing.T) {
	store := httpcases.OutcomeStore{Outcome: idem.Outcome{State: idem.InProgress, Remaining: 1<<63 - 1}}
	a := inProcess(t, guardWith(t, store, fasthttpidem.Config{})(status(200, "")), newRequest("k", ""))
	require.Equal(t, "9223372037", a.get("Retry-After"))
}

func TestErrorHandlerMayWriteTheProblem(t *testing.T) {
	h := guard(t, fasthttpidem.Config{DocsURL: docs, ErrorHandler: fasthttpidem.WriteProblem})(status(200, ""))
	h = sets("Link", "</style.css>; rel=preload")(h)
	a := inProcess(t, h, newRequest("", ""))
	requireProblem(t, a, 400, httpidem.CodeKeyInvalid)
	require.Equal(t, []string{"</style.css>; rel=preload", "<" + docs + `>; rel="describedby"`}, a.header["Link"])
}

// What a middleware around has set for every answer is set for a problem too, but for the body.
func TestProblemKeepsTheFieldsOfTheOutside(t *testing.T) {
	h := guard(t, fasthttpidem.Config{})(status(200, ""))
	outer := func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStream(strings.NewReader("stream"), -1)
		ctx.Response.Header.Set("Access-Control-Allow-Origin", "*")
		h(ctx)
	}
	a := post(t, startServer(t, outer), "a b", "")
	requireProblem(t, a, 400, httpidem.CodeKeyInvalid)
	require.Equal(t, "*", a.get("Access-Control-Allow-Origin"))
}

func TestProblemOfAFunctionIsNotChanged(t *testing.T) {
	shared := &httpidem.Problem{Status: 403, Code: "no"}
	h := guard(t, fasthttpidem.Config{
		DocsURL: "https://docs.example",
		Scope:   func(*fasthttp.RequestCtx) (string, error) { return "", shared },
	})(status(200, ""))
	members := requireProblem(t, inProcess(t, h, newRequest("k", "")), 403, "no")
	require.Equal(t, "Forbidden", members["title"])
	require.Equal(t, &httpidem.Problem{Status: 403, Code: "no"}, shared)
}

// A status that can't be an answer's is replaced by the one that any other error stands for.
func TestProblemWithoutAStatus(t *testing.T) {
	for _, code := range []int{0, -1, 42, 103, 1000} {
		bad := &httpidem.Problem{Status: code, Code: "nobody"}
		scope := guard(t, fasthttpidem.Config{Scope: func(*fasthttp.RequestCtx) (string, error) { return "", bad }})(status(200, ""))
		requireProblem(t, inProcess(t, scope, newRequest("k", "")), 401, "nobody")
		fingerprint := guard(t, fasthttpidem.Config{Fingerprint: func(*fasthttp.RequestCtx, []byte) (idem.Fingerprint, error) {
			return idem.Fingerprint{}, bad
		}})(status(200, ""))
		requireProblem(t, inProcess(t, fingerprint, newRequest("k", "")), 400, "nobody")
	}
}

func TestOptional(t *testing.T) {
	var runs atomic.Int32
	h := guard(t, fasthttpidem.Config{
		Optional: true,
		Scope:    func(*fasthttp.RequestCtx) (string, error) { return "", httpcases.ErrDown },
	})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		_, ok := fasthttpidem.FromContext(ctx)
		assert.False(t, ok)
		ctx.SetStatusCode(201)
	}))
	req := newRequest("", "body")
	req.Header.Del(httpidem.DefaultHeader)
	require.Equal(t, 201, inProcess(t, h, req).status)
	requireProblem(t, inProcess(t, h, newRequest("", "")), 400, httpidem.CodeKeyInvalid)
	requireProblem(t, inProcess(t, h, newRequest("k", "")), 401, httpidem.CodeScopeUnknown)
	require.EqualValues(t, 1, runs.Load())
}

func TestFailOpen(t *testing.T) {
	for _, err := range []error{httpcases.ErrDown, idem.ErrFull, idem.ErrClosed} {
		var runs atomic.Int32
		var log bytes.Buffer
		h := guardWith(t, httpcases.OutcomeStore{Err: err}, fasthttpidem.Config{FailOpen: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})(
			counted(&runs, func(ctx *fasthttp.RequestCtx) {
				_, ok := fasthttpidem.FromContext(ctx)
				assert.False(t, ok)
				ctx.SetBody(ctx.PostBody())
			}))
		for range 2 {
			a := inProcess(t, h, newRequest("secret-key", "body"))
			require.Equal(t, "body", a.body)
			require.Empty(t, a.get("Idempotency-Replayed"))
		}
		require.EqualValues(t, 2, runs.Load())
		require.Contains(t, log.String(), "level=WARN")
		require.NotContains(t, log.String(), "secret-key")
	}
	h := guardWith(t, httpcases.OutcomeStore{Err: idem.ErrKey}, fasthttpidem.Config{FailOpen: true})(status(200, ""))
	requireProblem(t, inProcess(t, h, newRequest("k", "")), 400, httpidem.CodeKeyInvalid)
}

// A context that is done makes a store fail too. Nobody reads the answer then, and who comes back shall find the work not done.
func TestFailOpenIsNotForWhoHasBeenGivenUp(t *testing.T) {
	var runs atomic.Int32
	h := guard(t, fasthttpidem.Config{FailOpen: true, Context: func(*fasthttp.RequestCtx) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}})(counted(&runs, status(200, "")))
	requireProblem(t, inProcess(t, h, newRequest("k", "")), 503, httpidem.CodeStoreUnavailable)
	require.Zero(t, runs.Load())
}

func TestMethods(t *testing.T) {
	for method, guarded := range map[string]bool{
		"POST": true, "PUT": true, "PATCH": true, "DELETE": true,
		"GET": false, "HEAD": false, "OPTIONS": false, "TRACE": false, "QUERY": false, "post": false,
	} {
		t.Run(method, func(t *testing.T) {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				_, ok := fasthttpidem.FromContext(ctx)
				assert.Equal(t, guarded, ok)
			})))
			for range 2 {
				conn := server.dial(t)
				conn.send(method + " / HTTP/1.1\nHost: x\nIdempotency-Key: k\nConnection: close\nContent-Length: 0\n\n")
				require.Equal(t, 200, conn.answer().status)
			}
			require.EqualValues(t, map[bool]int{true: 1, false: 2}[guarded], runs.Load())
		})
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	engine := newEngine(t, idem.Config{})
	for name, conf := range map[string]fasthttpidem.Config{
		"no scope":                  {},
		"negative MaxRequestBytes":  {Scope: fasthttpidem.SharedScope, MaxRequestBytes: -1},
		"negative MaxResponseBytes": {Scope: fasthttpidem.SharedScope, MaxResponseBytes: -1},
		"negative Wait":             {Scope: fasthttpidem.SharedScope, Wait: -1},
		"negative MaxRun":           {Scope: fasthttpidem.SharedScope, MaxRun: -1},
		"Header with a space":       {Scope: fasthttpidem.SharedScope, Header: "a b"},
		"Header with a colon":       {Scope: fasthttpidem.SharedScope, Header: "a:"},
		"relative DocsURL":          {Scope: fasthttpidem.SharedScope, DocsURL: "/docs"},
		"DocsURL with a fragment":   {Scope: fasthttpidem.SharedScope, DocsURL: "https://docs.example#x"},
		"DocsURL with a bracket":    {Scope: fasthttpidem.SharedScope, DocsURL: "https://docs.example/>"},
		"DocsURL with a newline":    {Scope: fasthttpidem.SharedScope, DocsURL: "https://docs.example/\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fasthttpidem.New(engine, conf)
			require.ErrorContains(t, err, "fasthttpidem: Config.")
		})
	}
	_, err := fasthttpidem.New(nil, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	require.ErrorContains(t, err, "no store")
	_, err = fasthttpidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.SharedScope, MaxRun: -time.Second})
	require.ErrorContains(t, err, "Config.MaxRun is -1s, want zero or more")
}

func TestScopes(t *testing.T) {
	t.Run("two principals may use one key", func(t *testing.T) {
		var runs atomic.Int32
		server := startServer(t, guard(t, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("authorization")})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			ctx.SetBody(ctx.Request.Header.Peek("Authorization"))
		})))
		for _, who := range []string{"Bearer a", "Bearer b"} {
			require.Equal(t, who, post(t, server, "k", "", "Authorization", who).body)
		}
		for _, who := range []string{"Bearer a", "Bearer b"} {
			requireReplayed(t, post(t, server, "k", "", "Authorization", who), 200, who)
		}
		require.EqualValues(t, 2, runs.Load())
	})
	t.Run("the store does not see the credentials", func(t *testing.T) {
		var store keyStore
		h := guardWith(t, &store, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")})(status(200, ""))
		inProcess(t, h, newRequest("k", "", "Authorization", "Bearer secret"))
		require.Len(t, store.requests[0].Scope, 43)
		require.NotContains(t, store.requests[0].Scope, "secret")
	})
	t.Run("ScopeHeader needs one field", func(t *testing.T) {
		for _, option := range []func(*fasthttp.Server){plainNames, func(*fasthttp.Server) {}} {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("X-Api-Key")})(counted(&runs, status(200, ""))), option)
			for _, fields := range [][]string{nil, {"X-Api-Key", ""}, {"X-Api-Key", "a", "X-Api-Key", "b"}, {"X-Api-Key", "a", "x-api-key", "b"}} {
				requireProblem(t, post(t, server, "k", "", fields...), 401, httpidem.CodeScopeUnknown)
			}
			require.Zero(t, runs.Load())
			require.Equal(t, 200, post(t, server, "k", "", "x-api-key", "a").status)
			requireReplayed(t, post(t, server, "k", "", "X-Api-Key", "a"), 200, "")
		}
	})
	t.Run("the function says how a request is refused", func(t *testing.T) {
		for _, test := range []struct {
			err    error
			status int
			code   string
		}{
			{errors.New("secret"), 401, httpidem.CodeScopeUnknown},
			{&httpidem.Problem{Status: 403, Code: "tenant_locked"}, 403, "tenant_locked"},
			{fmt.Errorf("wrapped: %w", &httpidem.Problem{Status: 400, Code: "anonymous"}), 400, "anonymous"},
		} {
			var runs atomic.Int32
			h := guard(t, fasthttpidem.Config{Scope: func(*fasthttp.RequestCtx) (string, error) { return "", test.err }})(counted(&runs, status(200, "")))
			a := inProcess(t, h, newRequest("k", ""))
			requireProblem(t, a, test.status, test.code)
			require.NotContains(t, a.body, "secret")
			require.Zero(t, runs.Load())
		}
	})
	t.Run("a scope that the store does not take", func(t *testing.T) {
		var log bytes.Buffer
		h := guard(t, fasthttpidem.Config{
			Scope:  func(*fasthttp.RequestCtx) (string, error) { return strings.Repeat("x", 256), nil },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})(status(200, ""))
		members := requireProblem(t, inProcess(t, h, newRequest("secret-key", "")), http.StatusBadRequest, httpidem.CodeKeyInvalid)
		require.Contains(t, members["detail"], "scope")
		require.Contains(t, log.String(), "level=ERROR")
		require.Contains(t, log.String(), "scope_bytes=256")
		require.NotContains(t, log.String(), "secret-key")
	})
}
