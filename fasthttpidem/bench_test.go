package fasthttpidem_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
)

// payment is the body of every request of the benchmarks: 300 bytes.
var payment = fmt.Appendf(nil, `{"amount":1250,"currency":"EUR","description":"%0*d"}`, 300-49, 0)

// payHandler answers as a payments service does, without work of its own.
func payHandler(ctx *fasthttp.RequestCtx) {
	ctx.SetContentType("application/json")
	ctx.Response.Header.Set("Location", "/payments/1")
	ctx.SetStatusCode(fasthttp.StatusCreated)
	ctx.SetBodyString(`{"id":1,"amount":1250,"currency":"EUR","status":"created"}`)
}

// A caller sends one request over and over in process, so that it costs next to nothing beside what handles it.
type caller struct {
	handle fasthttp.RequestHandler
	ctx    fasthttp.RequestCtx
	key    [16]byte
	sent   uint64
}

func newCaller(handle fasthttp.RequestHandler) *caller {
	c := &caller{handle: handle}
	c.ctx.Init(&fasthttp.Request{}, nil, nil)
	c.ctx.Request.Header.SetMethod(fasthttp.MethodPost)
	c.ctx.Request.SetRequestURI("/payments")
	c.ctx.Request.SetBodyRaw(payment)
	return c
}

// call sends a request with the key of the number.
func (c *caller) call(number uint64) *fasthttp.Response {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], number)
	const digits = "0123456789abcdef"
	for i, b := range raw {
		c.key[2*i], c.key[2*i+1] = digits[b>>4], digits[b&15]
	}
	c.ctx.Response.Reset()
	c.ctx.ResetUserValues()
	c.ctx.Request.Header.SetBytesV("Idempotency-Key", c.key[:])
	c.handle(&c.ctx)
	return &c.ctx.Response
}

// pay is call for a test. To check by package require would be a tenth of what is measured.
func (c *caller) pay(tb testing.TB, number uint64) {
	if status := c.call(number).StatusCode(); status != 201 {
		tb.Fatal(status)
	}
}

func newGuarded(tb testing.TB) fasthttp.RequestHandler {
	tb.Helper()
	engine, err := idem.New(idem.Config{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, engine.Close()) })
	idempotent, err := fasthttpidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.SharedScope})
	require.NoError(tb, err)
	return idempotent(payHandler)
}

// BenchmarkFresh is a request with a new key: what the middleware adds is the difference to bare.
func BenchmarkFresh(b *testing.B) {
	bare := func(testing.TB) fasthttp.RequestHandler { return payHandler }
	for name, start := range map[string]func(testing.TB) fasthttp.RequestHandler{"bare": bare, "guarded": newGuarded} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := newCaller(start(b))
			for b.Loop() {
				c.sent++
				c.pay(b, c.sent)
			}
		})
	}
}

// BenchmarkReplay is a request that was answered before.
func BenchmarkReplay(b *testing.B) {
	const keys = 1024
	c := newCaller(newGuarded(b))
	for i := range uint64(keys) {
		c.call(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.sent++
		c.pay(b, c.sent%keys)
	}
}
