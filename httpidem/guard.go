package httpidem

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// storeRetryAfter is what a client is told when the store is full or down, and nobody knows for how long.
const storeRetryAfter = time.Second

// A guard is what [New] puts around handlers.
type guard struct {
	store idem.Store
	conf  Config // with its defaults
}

// serve answers one request: by the handler, by a replay, or by a problem.
func (g *guard) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	if !isGuarded(r.Method) || (g.conf.Optional && len(r.Header[g.conf.Header]) == 0) {
		next.ServeHTTP(w, r)
		return
	}
	var in intake
	if p := g.read(&in, r); p != nil {
		g.refuse(w, r, p)
		return
	}
	out, err := g.begin(r.Context(), &in.request)
	switch {
	case err != nil:
		g.withoutStore(next, w, r, &in, err)
	case out.State == idem.Fresh:
		g.run(next, w, r, &in, out)
	case out.State == idem.Replay && isReplayable(out.Response):
		replay(w, out.Response)
	default:
		g.refuse(w, r, problemFor(out))
	}
}

func isGuarded(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// begin asks the store for the claim, and waits for the owner as long as Config.Wait allows.
func (g *guard) begin(ctx context.Context, req *idem.Request) (idem.Outcome, error) {
	out, err := g.store.Begin(ctx, *req)
	if err != nil || out.State != idem.InProgress || g.conf.Wait == 0 {
		return out, err
	}
	waiting, cancel := context.WithTimeout(ctx, g.conf.Wait)
	defer cancel()
	patient := *req
	patient.Wait = true
	waited, err := g.store.Begin(waiting, patient)
	switch {
	case err == nil || waiting.Err() == nil:
		return waited, err
	case ctx.Err() != nil: // the client left, or the request was given up: nobody reads this
		return out, nil
	default: // once more, to learn how long the lease lasts that was extended meanwhile
		return g.store.Begin(ctx, *req)
	}
}

// withoutStore answers a request for which the store granted no claim.
func (g *guard) withoutStore(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake, err error) {
	if errors.Is(err, idem.ErrKey) {
		g.refuse(w, r, problemKeyInvalid())
		return
	}
	if g.conf.FailOpen && r.Context().Err() == nil {
		g.conf.Logger.WarnContext(r.Context(), "no store: handler runs without protection", "error", err)
		next.ServeHTTP(w, in.restore(r.Context(), r, &body{data: in.body}))
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
	p.setHeader(w.Header())
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
