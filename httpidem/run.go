package httpidem

import (
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// A run is a handler that runs under a claim. All that the handler may hold on to is part of it, so that it
// is one allocation.
type run struct {
	*guard
	op      Operation
	rec     recorder
	body    body
	values  detached
	tenure  tenure.Tenure
	settled bool // the handler has answered, so that the claim must not be released as if it had not
}

// run calls the handler, records its answer and sends it.
//
// It does not use [idem.Do]. There a caller's context governs both the wait for the claim and the
// operation; here the client's governs the one and must not touch the other. And the response has to be
// recorded or not by what it is, which is known when it is there, and not by an error.
func (g *guard) run(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake) {
	x := &run{guard: g}
	x.op.tenure = &x.tenure
	x.body.data = in.body
	x.rec.init(w, r, &g.conf, in.head[:0], in.request.Buf)
	x.values = detached{request: r.Context(), op: &x.op}
	x.tenure.Start(tenure.Terms{
		Store: g.asker.Store, Claim: in.outcome.Claim, Lease: in.outcome.Remaining,
		Values: &x.values, MaxRun: g.conf.MaxRun, Keeper: in.keeper, Logger: g.conf.Logger,
	})
	// A panic and runtime.Goexit pass through end as well, without being recovered: the trace and the
	// reaction of whoever is outside stay as they would be.
	defer x.end()

	in.serve(x.tenure.Context(), next, &x.rec, r, &x.body)
	x.settled = true // also if a function of the Config panics: the handler has run
	x.rec.finish()
	x.settle(r)
}

// end gives the claim up if the handler did not answer, and ends the context in any case.
func (x *run) end() {
	x.tenure.End()
	if !x.settled {
		x.tenure.Release()
	}
	x.body.end()
	x.rec.head, x.rec.body = nil, nil
}

// settle does with the answer what the policy says, and sends it.
func (x *run) settle(r *http.Request) {
	action := x.action()
	if action == Release {
		x.tenure.Release() // before the answer is sent: the client may come back as soon as it has it
	} else if err := x.tenure.Complete(x.response(action)); err != nil {
		x.fail(r, err)
		return
	}
	x.rec.deliver()
}

// action is what becomes of the key. A handler knows better than a status, and a connection that was taken over has none.
func (x *run) action() Action {
	switch {
	case x.op.held.Load():
		return Hold
	case x.op.noStore.Load():
		return Release
	case x.rec.hijacked:
		return Store
	default:
		return x.conf.Policy(x.rec.status)
	}
}

// response is what to record: the answer, or the mark that it has no known outcome.
func (x *run) response(action Action) (resp idem.Response) {
	if action == Hold {
		resp = httpwire.Held(x.rec.status)
	} else {
		resp = x.rec.response(x.conf.KeepHeader, x.conf.Redact)
	}
	resp.TTL = time.Duration(x.op.ttl.Load())
	return resp
}

// fail answers a request that was run and could not be recorded. The claim is kept, so that the handler
// is not run again before its lease ends: the effect took place.
func (x *run) fail(r *http.Request, err error) {
	x.conf.Logger.ErrorContext(&x.values, "httpidem: handler ran, but its response could not be recorded", "error", err,
		"status", x.rec.status, "method", r.Method, "path", r.URL.Path, "token", x.tenure.Claim().Token)
	switch {
	case x.rec.hijacked: // the connection is not ours any more
	case x.rec.streaming:
		panic(http.ErrAbortHandler) // much of it is sent: all that is left is to let it end in an error
	default:
		restore(x.rec.w.Header(), x.rec.entry)
		p := NewProblem(CodeStoreUnavailable)
		p.Detail = httpwire.NotRecorded
		x.refuse(x.rec.w, r, p)
	}
}
