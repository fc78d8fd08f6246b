package bench_test

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
)

// fiberApp is a service on fiber, whose server is fasthttp.
type fiberApp struct {
	app    *fiber.App
	handle fasthttp.RequestHandler // all of app
	count  atomic.Int64
	engine *idem.Engine        // nil without one
	ctx    fasthttp.RequestCtx // of call
	served chan error          // nil before listen
}

func startFiberBare(testing.TB, time.Duration) service { return newFiberApp() }

func startFiber(_ testing.TB, ttl time.Duration) service { return newFiberGuarded(ttl) }

// newFiberGuarded guards the handler with fiber's middleware, its own lock and its own store in memory. The
// store counts in whole seconds, so a lifetime of one ends within one second; nothing can close it, so it
// stays, and so does its goroutine, until the process ends.
func newFiberGuarded(ttl time.Duration) *fiberApp {
	return newFiberApp(idempotency.New(idempotency.Config{KeyHeader: keyField, Lifetime: ttl}))
}

func newFiberApp(middleware ...any) *fiberApp {
	s := &fiberApp{app: fiber.New()}
	for _, m := range middleware {
		s.app.Use(m)
	}
	s.app.Post(path, s.pay)
	s.handle = s.app.Handler()

	initCall(&s.ctx)
	return s
}

func (s *fiberApp) pay(c fiber.Ctx) error {
	s.count.Add(1)
	c.Set("Content-Type", contentType)
	c.Set("Location", location)
	return c.Status(http.StatusCreated).Send(newAnswer(c.Get(keyField)))
}

func (s *fiberApp) listen(tb testing.TB) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	s.served = make(chan error, 1)
	go func() { s.served <- s.app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()

	awaitServer(tb, listener.Addr().String())
	return listener.Addr().String()
}

// awaitServer returns when a server accepts: one that is told to stop before it does never stops.
func awaitServer(tb testing.TB, address string) {
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "http://"+address, http.NoBody)
	require.NoError(tb, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(tb, err)
	require.NoError(tb, resp.Body.Close())
}

func (s *fiberApp) call(key []byte) (status int, body []byte) { return callFast(&s.ctx, s.handle, key) }

func (s *fiberApp) runs() int64 { return s.count.Load() }

func (s *fiberApp) close(tb testing.TB) {
	if s.served != nil {
		require.NoError(tb, s.app.Shutdown())
		require.NoError(tb, <-s.served)
	}
	if s.engine != nil {
		require.NoError(tb, s.engine.Close())
	}
}
