// Package fiberidem makes requests to a Fiber app that clients retry take effect once. It is package fasthttpidem as a
// middleware of Fiber, whose documentation says what it does:
//
//	idempotent, err := fiberidem.New(engine, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")})
//	...
//	app.Post("/payments", idempotent, pay)
//
// What Fiber has in Locals a function of the Config finds with UserValue, under the same key: the principal that a
// middleware around this one has authenticated, say.
package fiberidem

import (
	"context"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
)

// New returns a middleware that runs the handlers after it once per key. It fails as [fasthttpidem.New] does.
//
// The handlers find the operation with [FromContext], and its context in Ctx.Context, with the values that were in it. An
// error that they return is made a response by the app's ErrorHandler before the middleware looks at it, and so is
// recorded, or not, as any other with its status. Nil for Config.Context means [fiber.Ctx.Context].
func New(store idem.Store, conf fasthttpidem.Config) (fiber.Handler, error) {
	if conf.Context == nil {
		conf.Context = contextOf
	}
	idempotent, err := fasthttpidem.New(store, conf)
	if err != nil {
		return nil, err
	}
	return func(c fiber.Ctx) error {
		ctx := c.RequestCtx()
		ctx.SetUserValue(ctxKey{}, c)
		if sent := string(ctx.Method()); sent != c.Method() { // a middleware has overridden it, for Fiber alone
			ctx.Request.Header.SetMethod(c.Method())
			defer ctx.Request.Header.SetMethod(sent)
		}
		var err error
		idempotent(func(*fasthttp.RequestCtx) { err = run(c) })(ctx)
		return err
	}, nil
}

// ctxKey is the user value under which a request has its [fiber.Ctx].
type ctxKey struct{}

func contextOf(ctx *fasthttp.RequestCtx) context.Context {
	if c, ok := ctx.UserValue(ctxKey{}).(fiber.Ctx); ok {
		return c.Context()
	}
	return context.Background()
}

// FromContext returns the operation that a handler runs, see [fasthttpidem.FromContext].
func FromContext(c fiber.Ctx) (op *fasthttpidem.Operation, ok bool) {
	return fasthttpidem.FromContext(c.RequestCtx())
}

// run calls the handlers that follow, with the operation's context. What they return is a response by the time that it is
// recorded; the error is theirs when there is no operation.
func run(c fiber.Ctx) error {
	op, ok := FromContext(c)
	if !ok {
		return c.Next() // nothing is recorded
	}
	outer := c.Context()
	c.SetContext(op.Context())
	defer c.SetContext(outer)
	err := c.Next()
	if c.IsAbandoned() {
		op.Hold() // Fiber's timeout has answered in the same response, or does, while a handler may go on
		return nil
	}
	if err == nil {
		return nil
	}
	if err = c.App().ErrorHandler(c, err); err != nil {
		_ = c.SendStatus(http.StatusInternalServerError) // as the app itself does
	}
	return nil
}
