package fiberidem_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	fiberrecover "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem/fiberidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A service is an app on a real server, with one operation: POST /payments.
type service struct {
	t       *testing.T
	app     *fiber.App
	address string
	runs    atomic.Int64
}

// serve starts an app whose middlewares come before the guarded handler.
func serve(t *testing.T, conf fasthttpidem.Config, pay fiber.Handler, middlewares ...any) *service {
	t.Helper()
	engine, err := idem.New(idem.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	if conf.Scope == nil {
		conf.Scope = fasthttpidem.SharedScope
	}
	idempotent, err := fiberidem.New(engine, conf)
	require.NoError(t, err)

	s := &service{t: t, app: fiber.New()}
	for _, m := range middlewares {
		s.app.Use(m)
	}
	s.app.Post("/payments", idempotent, func(c fiber.Ctx) error {
		s.runs.Add(1)
		return pay(c)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = "http://" + listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- s.app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	s.get("/") // a server that is told to stop before it accepts never stops
	t.Cleanup(func() {
		require.NoError(t, s.app.Shutdown())
		require.NoError(t, <-served)
	})
	return s
}

type answer struct {
	status   int
	body     string
	header   http.Header
	replayed bool
}

func (s *service) get(path string) answer { return s.send(http.MethodGet, path, "", nil) }

func (s *service) post(key string, fields ...string) answer {
	return s.send(http.MethodPost, "/payments", key, fields)
}

func (s *service) send(method, path, key string, fields []string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.address+path, strings.NewReader(`{"amount":1}`))
	require.NoError(s.t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	return answer{resp.StatusCode, string(body), resp.Header, resp.Header.Get("Idempotency-Replayed") == "true"}
}

func TestReplay(t *testing.T) {
	s := serve(t, fasthttpidem.Config{}, func(c fiber.Ctx) error {
		c.Set("Location", "/payments/1")
		return c.Status(http.StatusCreated).JSON(fiber.Map{"id": 1})
	})
	first, second := s.post("k"), s.post("k")
	require.False(t, first.replayed)
	require.True(t, second.replayed)
	for _, a := range []answer{first, second} {
		require.Equal(t, 201, a.status)
		require.JSONEq(t, `{"id":1}`, a.body)
		require.Equal(t, "/payments/1", a.header.Get("Location"))
		require.Equal(t, first.header.Get("Content-Type"), a.header.Get("Content-Type"))
	}
	require.EqualValues(t, 1, s.runs.Load())
	require.Equal(t, 400, s.post("").status)
	require.Equal(t, 404, s.get("/payments/7").status, "what is not guarded is left alone")
}

// An error is a response by the time that the middleware looks.
func TestErrorsAreResponses(t *testing.T) {
	for _, test := range []struct {
		name     string
		err      error
		status   int
		replayed bool
	}{
		{"the client's fault", fiber.NewError(422, "too little"), 422, true},
		{"the server's fault", fiber.NewError(503, "come back"), 503, false},
		{"any other", errors.New("boom"), 500, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, fasthttpidem.Config{}, func(fiber.Ctx) error { return test.err })
			first, second := s.post("k"), s.post("k")
			require.Equal(t, test.status, first.status)
			require.Equal(t, first.body, second.body)
			require.Equal(t, test.status, second.status)
			require.Equal(t, test.replayed, second.replayed)
			if test.replayed {
				require.EqualValues(t, 1, s.runs.Load())
			} else {
				require.EqualValues(t, 2, s.runs.Load())
			}
		})
	}
}

func TestPanicFreesTheKey(t *testing.T) {
	var failed atomic.Bool
	s := serve(t, fasthttpidem.Config{}, func(c fiber.Ctx) error {
		if !failed.Swap(true) {
			panic("boom")
		}
		return c.SendString("done")
	}, fiberrecover.New())
	require.Equal(t, 500, s.post("k").status)
	again := s.post("k")
	require.Equal(t, "done", again.body)
	require.False(t, again.replayed)
}

func TestScopeFromLocals(t *testing.T) {
	conf := fasthttpidem.Config{Scope: func(ctx *fasthttp.RequestCtx) (string, error) {
		name, ok := ctx.UserValue("user").(string)
		if !ok {
			return "", httpidem.NewProblem(httpidem.CodeScopeUnknown)
		}
		return name, nil
	}}
	s := serve(t, conf, func(c fiber.Ctx) error { return c.SendString(fiber.Locals[string](c, "user")) },
		func(c fiber.Ctx) error {
			if user := c.Get("User"); user != "" {
				c.Locals("user", strings.Clone(user))
			}
			return c.Next()
		})
	require.Equal(t, "ann", s.post("k", "User", "ann").body)
	require.Equal(t, "bob", s.post("k", "User", "bob").body)
	require.True(t, s.post("k", "User", "ann").replayed)
	require.Equal(t, 401, s.post("k").status)
}

type valueKey struct{}

// The context of Ctx is the operation's while the handler runs, and what it was afterwards.
func TestContextIsTheOperations(t *testing.T) {
	seen := make(chan error, 1)
	after := make(chan error, 1)
	conf := fasthttpidem.Config{MaxRun: 20 * time.Millisecond}
	s := serve(t, conf, func(c fiber.Ctx) error {
		op, ok := fiberidem.FromContext(c)
		require.True(t, ok)
		require.NotZero(t, op.Claim().Token)
		require.Equal(t, "outer", c.Context().Value(valueKey{}))
		<-c.Context().Done()
		seen <- context.Cause(c.Context())
		return c.SendStatus(200)
	}, func(c fiber.Ctx) error {
		c.SetContext(context.WithValue(c.Context(), valueKey{}, "outer"))
		err := c.Next()
		after <- c.Context().Err()
		return err
	})
	require.NoError(t, <-after, "of the request by which the server was found to listen")
	require.Equal(t, 200, s.post("k").status)
	require.ErrorIs(t, <-seen, context.DeadlineExceeded)
	require.NoError(t, <-after)
}

// Fiber's timeout answers while a handler goes on, and in the same response. What the operation comes to is not known then,
// and it is not run again.
func TestTimeoutInside(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, fasthttpidem.Config{}, timeout.New(func(c fiber.Ctx) error {
		<-release
		return nil
	}, timeout.Config{Timeout: 20 * time.Millisecond}))
	require.Equal(t, 408, s.post("k").status)
	close(release)
	again := s.post("k")
	require.Equal(t, 409, again.status)
	require.Contains(t, again.body, httpidem.CodeOutcomeUnknown)
	require.EqualValues(t, 1, s.runs.Load())
}

// It is a heavy test because the race detector does not like what Fiber does: handler and timeout write the same response.
func TestHeavyTimeoutAround(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, fasthttpidem.Config{}, func(c fiber.Ctx) error {
		<-release
		return c.SendString("charged")
	}, timeout.New(fiber.Ctx.Next, timeout.Config{Timeout: 20 * time.Millisecond}))
	require.Equal(t, 408, s.post("k").status)
	require.Contains(t, s.post("k").body, httpidem.CodeInProgress)
	close(release)
	require.Eventually(t, func() bool {
		return strings.Contains(s.post("k").body, httpidem.CodeOutcomeUnknown)
	}, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 1, s.runs.Load())
}

func TestStream(t *testing.T) {
	s := serve(t, fasthttpidem.Config{}, func(c fiber.Ctx) error {
		c.Set("Content-Type", "text/event-stream")
		return c.SendStreamWriter(func(w *bufio.Writer) {
			for range 3 {
				_, _ = w.WriteString("data: 1\n\n")
				_ = w.Flush()
			}
		})
	})
	first, second := s.post("k"), s.post("k")
	require.Equal(t, strings.Repeat("data: 1\n\n", 3), first.body)
	require.Equal(t, first.body, second.body)
	require.True(t, second.replayed)
	require.Equal(t, "text/event-stream", second.header.Get("Content-Type"))
}

func TestBadConfig(t *testing.T) {
	_, err := fiberidem.New(nil, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	require.EqualError(t, err, "fasthttpidem: no store")
}
