package httpidem

import (
	"errors"
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
)

// finishTimeout bounds each call by which a run ends its claim.
const finishTimeout = 10 * time.Second

// completePauses are the pauses before the attempts to record a response. The client waits meanwhile,
// and the claim is extended.
var completePauses = [...]time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// A run is a handler that runs under a claim. All that the handler may hold on to is part of it, so that it
// is one allocation.
type run struct {
	*guard
	op      Operation
	rec     recorder
	body    body
	values  detached
	ctx     lazyctx.Context // the handler's
	ending  lazyctx.Context // of the first call that ends the claim
	keeper  *keeper.Keeper
	settled bool // the handler has answered, so that the claim must not be released as if it had not
}

// run calls the handler, records its answer and sends it.
//
// It does not use [idem.Do]. There a caller's context governs both the wait for the claim and the
// operation; here the client's governs the one and must not touch the other. And the response has to be
// recorded or not by what it is, which is known when it is there, and not by an error.
func (g *guard) run(next http.Handler, w http.ResponseWriter, r *http.Request, in *intake) {
	x := &run{guard: g, keeper: in.keeper}
	x.op.claim = in.outcome.Claim
	x.body.data = in.body
	x.rec.init(w, r, &g.conf, in.request.Buf)
	x.values = detached{request: r.Context(), op: &x.op}
	now := time.Now()
	x.ctx.Until(&x.values, now.Add(g.conf.MaxRun))
	x.keep(now, in.outcome.Remaining)
	// A panic and runtime.Goexit pass through end as well, without being recovered: the trace and the
	// reaction of whoever is outside stay as they would be.
	defer x.end()

	in.serve(&x.ctx, next, &x.rec, r, &x.body)
	x.settled = true // also if a function of the Config panics: the handler has run
	x.rec.finish()
	x.settle(r)
}

// end gives the claim up if the handler did not answer, and ends the context in any case.
func (x *run) end() {
	x.ctx.End(nil)
	x.keeper.Stop()
	x.keeper.Wait()
	if !x.settled {
		x.abandon()
	}
	x.body.end()
	x.rec.body = nil
}

// settle does with the answer what the policy says, and sends it.
func (x *run) settle(r *http.Request) {
	action := x.action()
	if action == Release {
		// Before the answer is sent: the client may come back as soon as it has it.
		x.keeper.Stop()
		x.keeper.Wait() // an Extend that comes after Abandon would take the key again
		x.abandon()
	} else if err := x.record(action); err != nil {
		x.fail(r, err)
		return
	}
	x.rec.deliver()
}

// action is what becomes of the key. A handler that says it has done nothing knows better than a status, and
// a connection that was taken over has none.
func (x *run) action() Action {
	switch {
	case x.op.noStore.Load():
		return Release
	case x.rec.hijacked:
		return Store
	default:
		return x.conf.Policy(x.rec.status)
	}
}

// record ends the claim with the response, or with the mark that it has no known outcome.
func (x *run) record(action Action) error {
	var resp idem.Response
	if action == Hold {
		resp = held(x.rec.status)
	} else {
		resp = x.rec.response(x.conf.KeepHeader, x.conf.Redact)
	}
	resp.TTL = time.Duration(x.op.ttl.Load())
	defer x.keeper.Stop()
	return x.complete(resp)
}

// complete does so in several attempts if need be.
func (x *run) complete(resp idem.Response) (err error) {
	for _, pause := range completePauses {
		if pause > 0 {
			time.Sleep(pause)
		}
		ctx := x.finishing()
		err = x.store.Complete(ctx, x.op.claim, resp)
		ctx.End(nil)
		switch {
		case err == nil || errors.Is(err, idem.ErrTruncated):
			return nil // also without its body it is recorded that the handler ran
		case errors.Is(err, idem.ErrClaimLost) || errors.Is(err, idem.ErrClosed):
			return err
		}
	}
	return err
}

// finishing returns a context for a call that ends the claim. The handler's own has perhaps ended.
func (x *run) finishing() *lazyctx.Context {
	ctx := &x.ending
	if ctx.Started() {
		ctx = new(lazyctx.Context)
	}
	ctx.For(&x.values, finishTimeout)
	return ctx
}

// abandon gives the claim up. One attempt will do: at worst the key is free when its lease ends.
func (x *run) abandon() {
	ctx := x.finishing()
	defer ctx.End(nil)
	if err := x.store.Abandon(ctx, x.op.claim); err != nil {
		x.conf.Logger.WarnContext(ctx, "claim could not be given up; the key is free when its lease ends", "error", err)
	}
}

// fail answers a request that was run and could not be recorded. The claim is kept, so that the handler
// is not run again before its lease ends: the effect took place.
func (x *run) fail(r *http.Request, err error) {
	x.conf.Logger.ErrorContext(&x.values, "handler ran, but its response could not be recorded", "error", err, "status", x.rec.status)
	switch {
	case x.rec.hijacked: // the connection is not ours any more
	case x.rec.streaming:
		panic(http.ErrAbortHandler) // much of it is sent: all that is left is to let it end in an error
	default:
		restore(x.rec.w.Header(), x.rec.entry)
		x.refuse(x.rec.w, r, problemStoreUnavailable("The request was run, but its response could not be recorded."))
	}
}
