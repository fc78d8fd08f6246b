package bench_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem/fiberidem"
)

// startFiberIdem guards the handler of an app on fiber with fiberidem as it comes.
func startFiberIdem(tb testing.TB, ttl time.Duration) service {
	engine := newEngine(tb, ttl)
	guard, err := fiberidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	require.NoError(tb, err)
	app := newFiberApp(guard)
	app.engine = engine
	return app
}

func newEngine(tb testing.TB, ttl time.Duration) *idem.Engine {
	engine, err := idem.New(idem.Config{TTL: ttl})
	require.NoError(tb, err)
	return engine
}

// fastHTTP is a service on fasthttp alone.
type fastHTTP struct {
	handle fasthttp.RequestHandler
	engine *idem.Engine // nil without a guard
	count  atomic.Int64
	ctx    fasthttp.RequestCtx // of call
	server fasthttp.Server
	served chan error // nil before listen
}

func startFastHTTP(testing.TB, time.Duration) service {
	s := &fastHTTP{}
	s.handle = s.pay
	initCall(&s.ctx)
	return s
}

func startFastHTTPIdem(tb testing.TB, ttl time.Duration) service {
	s := &fastHTTP{engine: newEngine(tb, ttl)}
	guard, err := fasthttpidem.New(s.engine, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	require.NoError(tb, err)
	s.handle = guard(s.pay)
	initCall(&s.ctx)
	return s
}

func (s *fastHTTP) pay(ctx *fasthttp.RequestCtx) {
	if !ctx.IsPost() {
		ctx.NotFound()
		return
	}
	s.count.Add(1)
	ctx.SetContentType(contentType)
	ctx.Response.Header.Set("Location", location)
	ctx.SetStatusCode(fasthttp.StatusCreated)
	ctx.Response.SetBodyRaw(newAnswer(string(ctx.Request.Header.Peek(keyField))))
}

func (s *fastHTTP) listen(tb testing.TB) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	s.server.Handler = s.handle
	s.served = make(chan error, 1)
	go func() { s.served <- s.server.Serve(listener) }()
	awaitServer(tb, listener.Addr().String())
	return listener.Addr().String()
}

func (s *fastHTTP) call(key []byte) (status int, body []byte) { return callFast(&s.ctx, s.handle, key) }

func (s *fastHTTP) runs() int64 { return s.count.Load() }

func (s *fastHTTP) close(tb testing.TB) {
	if s.served != nil {
		require.NoError(tb, s.server.Shutdown())
		require.NoError(tb, <-s.served)
	}
	if s.engine != nil {
		require.NoError(tb, s.engine.Close())
	}
}

// initCall makes ctx a request that callFast sends over and over, so that it costs next to nothing beside what handles it.
func initCall(ctx *fasthttp.RequestCtx) {
	ctx.Init(&fasthttp.Request{}, nil, nil)
	ctx.Request.Header.SetMethod(fasthttp.MethodPost)
	ctx.Request.SetRequestURI(path)
	ctx.Request.SetBodyRaw(payment)
}

func callFast(ctx *fasthttp.RequestCtx, handle fasthttp.RequestHandler, key []byte) (status int, body []byte) {
	ctx.Response.Reset()
	ctx.ResetUserValues()
	ctx.Request.Header.SetBytesV(keyField, key)
	handle(ctx)
	return ctx.Response.StatusCode(), ctx.Response.Body()
}
