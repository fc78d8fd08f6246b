package fiberidem_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/timeout"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem/fiberidem"
)

// What Fiber and its middlewares do around the guarded handler.

// A slowOnce is a store whose first Complete takes long and fails.
type slowOnce struct {
	idem.Store

	calls atomic.Int32
}

func (s *slowOnce) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if s.calls.Add(1) == 1 {
		time.Sleep(400 * time.Millisecond)
		return errors.New("connection reset")
	}
	return s.Store.Complete(ctx, c, resp)
}

// serveApp serves an app that routes makes, with the middleware on a store.
func serveApp(t *testing.T, store func(*idem.Engine) idem.Store, conf fasthttpidem.Config, app *fiber.App, routes func(idempotent fiber.Handler)) *service {
	t.Helper()
	engine, err := idem.New(idem.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	conf.Scope = fasthttpidem.SharedScope
	idempotent, err := fiberidem.New(store(engine), conf)
	require.NoError(t, err)
	routes(idempotent)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &service{t: t, app: app, address: "http://" + listener.Addr().String()}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	s.get("/")
	t.Cleanup(func() {
		require.NoError(t, app.Shutdown())
		require.NoError(t, <-served)
	})
	return s
}

func onEngine(e *idem.Engine) idem.Store { return e }

// A timeout around fires while the store is slow: Fiber answers in the same response, and its memory goes to others.
func TestHeavyTimeoutWhileTheStoreIsSlow(t *testing.T) {
	app := fiber.New(fiber.Config{ReduceMemoryUsage: true, ErrorHandler: func(c fiber.Ctx, err error) error {
		return c.Status(http.StatusRequestTimeout).JSON(fiber.Map{"error": err.Error()})
	}})
	slow := func(e *idem.Engine) idem.Store { return &slowOnce{Store: e} }
	s := serveApp(t, slow, fasthttpidem.Config{}, app, func(idempotent fiber.Handler) {
		app.Use("/payments", timeout.New(fiber.Ctx.Next, timeout.Config{Timeout: 30 * time.Millisecond}))
		app.Post("/payments", idempotent, func(c fiber.Ctx) error { return c.SendString("paid 5, with the card of Alice") })
		app.Get("/bob", func(c fiber.Ctx) error { return c.SendString("for Bob and for nobody else") })
	})
	require.Equal(t, http.StatusRequestTimeout, s.post("k").status)
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for range 60 {
				s.get("/bob")
			}
		})
	}
	others.Wait()
	var again answer
	require.Eventually(t, func() bool {
		again = s.post("k")
		return again.replayed
	}, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, "paid 5, with the card of Alice", again.body)
}

// Whoever looks at errors around the middleware sees those of requests that it leaves alone.
func TestErrorsOfWhatIsNotGuardedPass(t *testing.T) {
	var seen error
	app := fiber.New()
	s := serveApp(t, onEngine, fasthttpidem.Config{Optional: true}, app, func(idempotent fiber.Handler) {
		app.Use("/payments", func(c fiber.Ctx) error { seen = c.Next(); return seen })
		app.Use(idempotent)
		app.All("/payments", func(fiber.Ctx) error { return fiber.NewError(418, "no coffee") })
	})
	require.Equal(t, 418, s.get("/payments").status)
	require.Error(t, seen)
	require.Equal(t, 418, s.post("").status)
	require.Error(t, seen)
	require.Equal(t, 418, s.post("k").status)
	require.NoError(t, seen, "it is a response, and recorded")
}

// The method is what Fiber takes it for.
func TestMethodThatWasOverridden(t *testing.T) {
	app, runs := fiber.New(), 0
	s := serveApp(t, onEngine, fasthttpidem.Config{}, app, func(idempotent fiber.Handler) {
		app.Use(func(c fiber.Ctx) error {
			if method := c.Get("X-HTTP-Method-Override"); method != "" && c.Method() != method {
				c.Method(method)
				return c.RestartRouting()
			}
			return c.Next()
		})
		answers := func(c fiber.Ctx) error {
			runs++
			return c.SendString(fmt.Sprint(c.Method(), " ", runs))
		}
		app.Put("/payments", idempotent, answers)
		app.Delete("/payments", idempotent, answers)
	})
	require.Equal(t, "PUT 1", s.post("k", "X-HTTP-Method-Override", "PUT").body)
	require.Equal(t, 422, s.post("k", "X-HTTP-Method-Override", "DELETE").status)
	for range 2 {
		require.Equal(t, "DELETE 2", s.send(http.MethodGet, "/payments", "other", []string{"X-HTTP-Method-Override", "DELETE"}).body)
	}
}
