package httpidem

import (
	"errors"
	"net/http"
	"sync"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// A guard is what [New] puts around handlers.
type guard struct {
	asker tenure.Asker
	conf  Config // with its defaults

	// scratches holds what requests need for a while and no handler ever sees. Without it a fresh request
	// costs three allocations and a tenth of its time more, see BenchmarkFresh.
	scratches sync.Pool
}

// A scratch is what one request works with.
type scratch struct {
	buf    []byte         // the request and its response, see intake
	head   [4]field       // room for the header of the response: most handlers set no more
	keeper *keeper.Keeper // not part of it: the keeper's timer must not hold the memory of buf
}

// serve answers one request: by the handler, by a replay, or by a problem.
func (g *guard) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	if !httpwire.IsGuarded(r.Method) || (g.conf.Optional && len(r.Header[g.conf.Header]) == 0) {
		next.ServeHTTP(w, r)
		return
	}
	s, ok := g.scratches.Get().(*scratch)
	if !ok {
		s = &scratch{keeper: new(keeper.Keeper)}
	}
	g.answer(next, w, r, &intake{scratch: s})
	// Not deferred: what a handler that panics leaves behind is for the collector.
	if cap(s.buf) > maxTrustedLength {
		s.buf = nil // so that a few long requests don't hold memory for good
	}
	clear(s.head[:])
	g.scratches.Put(s)
}

// answer is serve for a request with a key.
func (g *guard) answer(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake) {
	if p := g.read(in, r); p != nil {
		g.refuse(w, r, p)
		return
	}
	var err error
	in.outcome, err = g.asker.Begin(r.Context(), nil, in.request)
	switch out := &in.outcome; {
	case err != nil:
		g.withoutStore(next, w, r, in, err)
	case out.State == idem.Fresh:
		g.run(next, w, r, in)
	case out.State == idem.Replay && httpwire.IsReplayable(&out.Response):
		replay(w, r, &out.Response)
	default: // what the client has to be told, whatever it is that a later store may answer
		g.refuse(w, r, ProblemFor(out))
	}
}

// withoutStore answers a request to which the store gave no answer. Nothing was claimed, so that running
// the handler is at worst what a server without the middleware would do.
func (g *guard) withoutStore(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake, err error) {
	if errors.Is(err, idem.ErrKey) {
		g.conf.Logger.ErrorContext(r.Context(), "httpidem: the store takes no key or scope of this length", "error", err,
			"method", r.Method, "path", r.URL.Path, "key_bytes", len(in.request.Key), "scope_bytes", len(in.request.Scope))
		p := NewProblem(CodeKeyInvalid)
		p.Detail = httpwire.KeyTooLong
		g.refuse(w, r, p)
		return
	}
	// A context that is done makes a store fail too. Then nobody reads an answer, and the client that
	// comes back shall find the work not done.
	if g.conf.FailOpen && r.Context().Err() == nil && in.outcome.State != idem.InProgress {
		g.conf.Logger.WarnContext(r.Context(), "httpidem: no store: handler runs without protection", "error", err,
			"method", r.Method, "path", r.URL.Path)
		b := &body{data: in.body}
		in.serve(r.Context(), next, w, r, b)
		b.end()
		return
	}
	g.conf.Logger.ErrorContext(r.Context(), "httpidem: no store: request refused", "error", err, "method", r.Method, "path", r.URL.Path)
	g.refuse(w, r, NewProblem(CodeStoreUnavailable))
}

// refuse answers with a problem.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	if p.Type == "" && g.conf.DocsURL != "" {
		p.Type = g.conf.DocsURL + "#" + p.Code
	}
	if g.conf.ErrorHandler == nil {
		p.ServeHTTP(w, r)
		return
	}
	p.setHeader(w.Header()) // clients that obey it must not depend on how the body is written
	g.conf.ErrorHandler(w, r, p)
}
