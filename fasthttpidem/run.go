package fasthttpidem

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// A run is a handler that runs under a claim. All that the handler may hold on to is part of it, so that it
// is one allocation.
type run struct {
	*guard
	*scratch
	op     Operation
	resp   *fasthttp.Response
	entry  header   // of resp before the handler touched it
	space  [64]byte // for it: mostly there is nothing
	tenure tenure.Tenure

	settled  bool // the handler has answered, so that the claim must not be released as if it had not
	hijacked bool // it has taken the connection over
	streams  bool // the response goes on when the handler has returned, and the tenure with it
}

// run calls the handler and records its answer, which the server sends afterwards. It tells whether the answer is a
// stream, with which the run goes on.
func (g *guard) run(next fasthttp.RequestHandler, ctx *fasthttp.RequestCtx, in *intake) (streams bool) {
	x := &run{guard: g, scratch: in.scratch, resp: &ctx.Response}
	x.op.tenure = &x.tenure
	x.entry = headerOf(&x.resp.Header, x.space[:])
	x.tenure.Start(tenure.Terms{
		Store: g.asker.Store, Claim: in.outcome.Claim, Lease: in.outcome.Remaining,
		Values: in.values, MaxRun: g.conf.MaxRun, Keeper: in.keeper, Logger: g.conf.Logger,
	})
	// A panic and runtime.Goexit pass through end as well, without being recovered: the trace and the
	// reaction of whoever is outside stay as they would be.
	defer x.end()

	ctx.SetUserValue(operationKey{}, &x.op)
	next(ctx)
	x.settled = true // also if a function of the Config panics: the handler has run
	x.hijacked = ctx.Hijacked()
	if err := x.settle(); err != nil {
		x.fail(ctx, err)
	}
	return x.streams
}

// end gives the claim up if the handler did not answer, and ends the tenure unless the response goes on.
func (x *run) end() {
	if x.streams {
		return
	}
	x.tenure.End()
	if !x.settled {
		x.tenure.Release()
	}
}

// settle does with the answer what is to be done with it.
func (x *run) settle() error {
	if !x.hijacked && x.isEndless() {
		x.stream()
		return nil
	}
	status := x.resp.StatusCode()
	return x.conclude(status, func() idem.Response {
		if x.hijacked { // what is said on the connection is nobody's but the handler's
			return idem.Response{Status: fasthttp.StatusSwitchingProtocols, Truncated: true}
		}
		if body, whole := x.collect(); whole {
			// A copy: what is around may still write into the response, or give its memory to another (Fiber's timeout).
			if _, ok := x.asker.Store.(*idem.Engine); !ok {
				body = bytes.Clone(body)
			}
			return x.response(body)
		}
		return idem.Response{Status: status, Truncated: true}
	})
}

// conclude ends the claim by what has become of the operation. record makes the record of it, if there is to be one.
func (x *run) conclude(status int, record func() idem.Response) error {
	var rec idem.Response
	switch x.action(status) {
	case httpidem.Release:
		x.tenure.Release() // before the answer is sent: the client may come back as soon as it has it
		return nil
	case httpidem.Hold:
		rec = httpwire.Held(status)
	default:
		rec = record()
	}
	rec.TTL = time.Duration(x.op.ttl.Load())
	return x.tenure.Complete(rec)
}

// action is what becomes of the key. A handler knows better than a status, and a connection that was taken over has none.
func (x *run) action(status int) httpidem.Action {
	switch {
	case x.op.held.Load():
		return httpidem.Hold
	case x.op.noStore.Load():
		return httpidem.Release
	case x.hijacked:
		return httpidem.Store
	default:
		return x.conf.Policy(status)
	}
}

// fail answers a request that was run and could not be recorded. The claim is kept, so that the handler
// is not run again before its lease ends: the effect took place.
func (x *run) fail(ctx *fasthttp.RequestCtx, err error) {
	x.tell(err)
	if x.hijacked {
		return // the connection is not ours any more
	}
	x.resp.Reset()
	x.entry.restore(&x.resp.Header)
	p := httpidem.NewProblem(httpidem.CodeStoreUnavailable)
	p.Detail = httpwire.NotRecorded
	x.refuse(ctx, p)
}

func (x *run) tell(err error) {
	x.conf.Logger.ErrorContext(x.tenure.Context(), "fasthttpidem: handler ran, but its response could not be recorded", "error", err,
		"token", x.tenure.Claim().Token)
}

// collect returns the body of the response, if it is one that can be kept. A stream that says how long it is, as of a
// file, becomes a body of bytes; one that is too long for it is left alone.
func (x *run) collect() (body []byte, whole bool) {
	if !x.resp.IsBodyStream() {
		body = x.resp.Body()
		return body, len(body) <= x.conf.MaxResponseBytes
	}
	if isBodyless(x.resp.StatusCode()) {
		return nil, true // the server does not read the stream either
	}
	length := x.resp.Header.ContentLength()
	if length > x.conf.MaxResponseBytes {
		return nil, false
	}
	stream := x.resp.BodyStream()
	body = make([]byte, length+1) // with room to see whether it is longer than it says
	n, err := readUp(stream, body)
	if err != nil || n != length {
		// The server finds out as it would have.
		x.resp.SetBodyStream(io.MultiReader(bytes.NewReader(body[:n]), failing{cmp.Or(err, io.EOF)}), length)
		return nil, false
	}
	x.resp.SetBodyRaw(body[:n])
	return body[:n], true
}

// readUp reads until the end, an error or the end of p. A reader that panics fails: the server would recover, and close the
// connection.
func readUp(r io.Reader, p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("fasthttpidem: the stream of the response panicked: %v", v)
		}
	}()
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// failing is a reader of nothing but an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
