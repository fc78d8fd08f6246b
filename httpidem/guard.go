package httpidem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
)

// storeRetryAfter is what a client is told when the store is full or down, and nobody knows for how long.
const storeRetryAfter = time.Second

// A guard is what [New] puts around handlers.
type guard struct {
	store idem.Store
	conf  Config // with its defaults

	// scratches holds what requests need for a while and no handler ever sees. Without it a fresh request
	// costs three allocations and a tenth of its time more, see BenchmarkFresh.
	scratches sync.Pool
}

// A scratch is what one request works with.
type scratch struct {
	buf    []byte         // the request and its response, see intake
	keeper *keeper.Keeper // not part of it: the keeper's timer must not hold the memory of buf
}

// serve answers one request: by the handler, by a replay, or by a problem.
func (g *guard) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	if !isGuarded(r.Method) || (g.conf.Optional && len(r.Header[g.conf.Header]) == 0) {
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
	g.scratches.Put(s)
}

// answer is serve for a request with a key.
func (g *guard) answer(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake) {
	if p := g.read(in, r); p != nil {
		g.refuse(w, r, p)
		return
	}
	err := g.begin(r.Context(), in)
	switch out := &in.outcome; {
	case err != nil:
		g.withoutStore(next, w, r, in, err)
	case out.State == idem.Fresh:
		g.run(next, w, r, in)
	case out.State == idem.Replay && isReplayable(&out.Response):
		replay(w, r, &out.Response)
	default: // what the client has to be told, whatever it is that a later store may answer
		g.refuse(w, r, problemFor(out))
	}
}

// isGuarded tells whether a request may change something. Safe methods pass, and so does HEAD with them:
// a record could not tell its response from that of a GET. Methods are case-sensitive.
func isGuarded(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// begin asks the store for the claim, and waits for the owner as long as Config.Wait allows. The first
// attempt does not wait, because most requests need neither a place in a queue nor a timer.
func (g *guard) begin(ctx context.Context, in *intake) (err error) {
	in.outcome, err = g.ask(ctx, in.request)
	if err != nil || in.outcome.State != idem.InProgress || g.conf.Wait == 0 {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, g.conf.Wait)
	defer cancel()
	// The store gives the place back when the client leaves, and passes a claim on that comes too late
	// (TestWaiterWhoseClientLeavesGivesItsPlaceBack).
	patient := in.request
	patient.Wait = true
	waited, err := g.store.Begin(waiting, patient)
	switch {
	case err == nil:
		in.outcome = waited
	case waiting.Err() == nil:
		return err
	case ctx.Err() != nil: // the client left, or the request was given up: nobody reads this
	default: // once more, to learn how long the lease lasts that was extended meanwhile
		in.outcome, err = g.ask(ctx, in.request)
		return err
	}
	return nil
}

// ask is a Begin that does not wait for an owner, and for the store no longer than Config.StoreTimeout.
func (g *guard) ask(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if g.conf.StoreTimeout < 0 {
		return g.store.Begin(ctx, req)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, g.conf.StoreTimeout, errSlow)
	defer cancel()
	out, err := g.store.Begin(ctx, req)
	if err != nil && context.Cause(ctx) == errSlow && !errors.Is(err, errSlow) { //nolint:errorlint // it is that very error
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return out, err
}

// errSlow says in the log what a deadline was exceeded.
var errSlow = errors.New("httpidem: the store did not answer within Config.StoreTimeout")

// withoutStore answers a request to which the store gave no answer. Nothing was claimed, so that running
// the handler is at worst what a server without the middleware would do.
func (g *guard) withoutStore(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake, err error) {
	if errors.Is(err, idem.ErrKey) {
		g.conf.Logger.ErrorContext(r.Context(), "the store takes no key or scope of this length", "error", err,
			"key_bytes", len(in.request.Key), "scope_bytes", len(in.request.Scope))
		p := problemKeyInvalid()
		p.Detail = "The server's store does not take a key of this length, or the scope that the server puts it in."
		g.refuse(w, r, p)
		return
	}
	// A context that is done makes a store fail too. Then nobody reads an answer, and the client that
	// comes back shall find the work not done.
	if g.conf.FailOpen && r.Context().Err() == nil {
		g.conf.Logger.WarnContext(r.Context(), "no store: handler runs without protection", "error", err)
		b := &body{data: in.body}
		in.serve(r.Context(), next, w, r, b)
		b.end()
		return
	}
	g.conf.Logger.ErrorContext(r.Context(), "no store: request refused", "error", err)
	g.refuse(w, r, problemStoreUnavailable("The request was not run."))
}

// refuse answers with a problem.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.docs = g.conf.DocsURL
	if g.conf.ErrorHandler == nil {
		p.ServeHTTP(w, r)
		return
	}
	p.setHeader(w.Header()) // clients that obey it must not depend on how the body is written
	g.conf.ErrorHandler(w, r, p)
}

func problemKeyInvalid() *Problem {
	return &Problem{
		Status: http.StatusBadRequest, Code: CodeKeyInvalid, Title: "Idempotency key invalid",
		Detail: "A key is one field of 1 to 255 visible ASCII characters without quote and comma, or a structured-field String.",
	}
}

func problemStoreUnavailable(detail string) *Problem {
	return &Problem{
		Status: http.StatusServiceUnavailable, Code: CodeStoreUnavailable, Title: "Store unavailable",
		Detail: detail, RetryAfter: storeRetryAfter,
	}
}
