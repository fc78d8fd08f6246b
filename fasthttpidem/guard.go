package fasthttpidem

import (
	"errors"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// A guard is what [New] puts around handlers.
type guard struct {
	asker tenure.Asker
	conf  Config // with its defaults

	// scratches holds what requests need for a while and no handler ever sees.
	scratches sync.Pool
}

// maxPooledBytes bounds the buffers that are kept for other requests.
const maxPooledBytes = 64 << 10

// A scratch is what one request works with.
type scratch struct {
	buf    []byte         // the request and its response, see intake
	lines  []byte         // the header of the response
	room   [1]string      // for the key
	keeper *keeper.Keeper // not part of it: the keeper's timer must not hold the memory of buf
}

// serve answers one request: by the handler, by a replay, or by a problem.
func (g *guard) serve(next fasthttp.RequestHandler, ctx *fasthttp.RequestCtx) {
	if !httpwire.IsGuarded(string(ctx.Method())) {
		next(ctx)
		return
	}
	s, ok := g.scratches.Get().(*scratch)
	if !ok {
		s = &scratch{keeper: new(keeper.Keeper)}
	}
	lines := fieldLines(s.room[:0], &ctx.Request.Header, g.conf.Header)
	if g.conf.Optional && len(lines) == 0 {
		g.scratches.Put(s)
		next(ctx)
		return
	}
	if kept := g.answer(next, ctx, &intake{scratch: s, lines: lines}); kept {
		return
	}
	// Not deferred: what a handler that panics leaves behind is for the collector.
	if cap(s.buf) > maxPooledBytes {
		s.buf = nil // so that a few long requests don't hold memory for good
	}
	g.scratches.Put(s)
}

// answer is serve for a request with a key. It tells whether the scratch is still in use.
func (g *guard) answer(next fasthttp.RequestHandler, ctx *fasthttp.RequestCtx, in *intake) (kept bool) {
	in.values = g.conf.Context(ctx)
	if p := g.read(in, ctx); p != nil {
		g.refuse(ctx, p)
		return false
	}
	var err error
	in.outcome, err = g.asker.Begin(in.values, g.shutdown(ctx), in.request)
	switch out := &in.outcome; {
	case err != nil:
		g.withoutStore(next, ctx, in, err)
	case out.State == idem.Fresh:
		return g.run(next, ctx, in)
	case out.State == idem.Replay && httpwire.IsReplayable(&out.Response):
		replay(&ctx.Response, &out.Response)
	default: // what the client has to be told, whatever it is that a later store may answer
		g.refuse(ctx, httpidem.ProblemFor(out))
	}
	return false
}

// shutdown returns what is closed when the server is shut down, for a duplicate that waits. That the client leaves
// fasthttp does not tell.
func (g *guard) shutdown(ctx *fasthttp.RequestCtx) <-chan struct{} {
	if g.conf.Wait == 0 {
		return nil
	}
	return ctx.Done()
}

// withoutStore answers a request to which the store gave no answer. Nothing was claimed, so that running
// the handler is at worst what a server without the middleware would do.
func (g *guard) withoutStore(next fasthttp.RequestHandler, ctx *fasthttp.RequestCtx, in *intake, err error) {
	logger := g.conf.Logger
	switch {
	case errors.Is(err, idem.ErrKey):
		logger.ErrorContext(in.values, "fasthttpidem: the store takes no key or scope of this length", "error", err,
			"method", string(ctx.Method()), "path", string(ctx.Path()), "key_bytes", len(in.request.Key), "scope_bytes", len(in.request.Scope))
		p := httpidem.NewProblem(httpidem.CodeKeyInvalid)
		p.Detail = httpwire.KeyTooLong
		g.refuse(ctx, p)
	case g.conf.FailOpen && in.values.Err() == nil && in.outcome.State != idem.InProgress: // a context that is done makes a store fail too
		logger.WarnContext(in.values, "fasthttpidem: no store: handler runs without protection", "error", err,
			"method", string(ctx.Method()), "path", string(ctx.Path()))
		next(ctx)
	default:
		logger.ErrorContext(in.values, "fasthttpidem: no store: request refused", "error", err,
			"method", string(ctx.Method()), "path", string(ctx.Path()))
		g.refuse(ctx, httpidem.NewProblem(httpidem.CodeStoreUnavailable))
	}
}

// refuse answers with a problem.
func (g *guard) refuse(ctx *fasthttp.RequestCtx, p *httpidem.Problem) {
	if p.Type == "" && g.conf.DocsURL != "" {
		p.Type = g.conf.DocsURL + "#" + p.Code
	}
	setProblemHeader(&ctx.Response.Header, p) // clients that obey it must not depend on how the body is written
	g.conf.ErrorHandler(ctx, p)
}

// WriteProblem writes a problem as application/problem+json. It is what Config.ErrorHandler is by default, and one of
// the user's may call it for what it doesn't write itself.
func WriteProblem(ctx *fasthttp.RequestCtx, p *httpidem.Problem) {
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // strings and numbers can always be marshalled, invalid UTF-8 included
	}
	setProblemHeader(&ctx.Response.Header, p)
	ctx.SetContentType("application/problem+json")
	ctx.SetStatusCode(p.Status)
	ctx.SetBody(append(body, '\n'))
}

// setProblemHeader sets the fields that a client acts on, beside a Link that is there. It may be called twice.
func setProblemHeader(h *fasthttp.ResponseHeader, p *httpidem.Problem) {
	for name, values := range p.Header() {
		if name != "Link" {
			h.Set(name, values[0])
			continue
		}
		there := false
		for _, link := range h.PeekAll(name) {
			there = there || string(link) == values[0]
		}
		if !there {
			h.Add(name, values[0])
		}
	}
}
