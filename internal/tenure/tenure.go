// Package tenure is the time in which a handler has a claim: it asks a store for the claim, keeps it while the handler
// runs, and ends it. Middlewares for different servers differ in what a request is, and not in this.
package tenure

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
)

// finishTimeout bounds each call by which a tenure ends its claim.
const finishTimeout = 10 * time.Second

// completePauses are the pauses before the attempts to record a response. The client waits meanwhile,
// and the claim is extended.
var completePauses = [...]time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// fallbackLease is taken for the length of a lease that the store does not tell: better too often than never.
const fallbackLease = 30 * time.Second

// Terms are what a tenure begins with.
type Terms struct {
	Store  idem.Store
	Claim  idem.Claim
	Lease  time.Duration   // what is left of it; zero and below: not known
	Values context.Context //nolint:containedctx // whose values the contexts of the tenure have; it is never done
	MaxRun time.Duration   // after which the handler's context ends
	Keeper *keeper.Keeper  // one that nobody uses
	Logger *slog.Logger
}

// A Tenure is to be part of what it belongs to, so that it is not even an allocation. It begins with Start and ends with
// one of Complete and Release, if the handler has answered, and End in any case.
type Tenure struct {
	terms Terms
	ctx   lazyctx.Context // the handler's
}

// Start begins the tenure, and extends the claim from here on.
func (t *Tenure) Start(terms Terms) {
	t.terms = terms
	now := time.Now()
	t.ctx.Until(terms.Values, now.Add(terms.MaxRun))
	lease := terms.Lease
	if lease <= 0 {
		lease = fallbackLease
	}
	terms.Keeper.Start(keeper.Claim{Owner: t, Context: terms.Values, Lease: lease, Every: lease / 3}, now)
}

// Context is for the handler. It ends when the claim is lost, when MaxRun is over and with the tenure.
func (t *Tenure) Context() context.Context { return &t.ctx }

// Claim returns the claim.
func (t *Tenure) Claim() idem.Claim { return t.terms.Claim }

// Complete records the response, in several attempts if need be. If it fails the claim is kept, so that the handler
// is not run again before the lease ends.
func (t *Tenure) Complete(resp idem.Response) (err error) {
	defer t.terms.Keeper.Stop()
	for _, pause := range completePauses {
		if pause > 0 {
			time.Sleep(pause)
		}
		err = t.finish(func(ctx context.Context) error { return t.terms.Store.Complete(ctx, t.terms.Claim, resp) })
		switch {
		case err == nil || errors.Is(err, idem.ErrTruncated):
			return nil // also without its body it is recorded that the handler ran
		case errors.Is(err, idem.ErrClaimLost) || errors.Is(err, idem.ErrClosed):
			return err
		}
	}
	return err
}

// Release gives the claim up. One attempt will do: at worst the key is free when its lease ends.
func (t *Tenure) Release() {
	t.rest() // an Extend that comes after Abandon would take the key again
	err := t.finish(func(ctx context.Context) error { return t.terms.Store.Abandon(ctx, t.terms.Claim) })
	if err != nil {
		t.terms.Logger.WarnContext(t.terms.Values, "idem: claim could not be given up; the key is free when its lease ends", "error", err,
			"token", t.terms.Claim.Token)
	}
}

// End ends the handler's context, and returns when nothing of the tenure runs any more.
func (t *Tenure) End() {
	t.ctx.End(nil)
	t.rest()
}

// rest stops extending the claim.
func (t *Tenure) rest() {
	t.terms.Keeper.Stop()
	t.terms.Keeper.Wait()
}

// finish makes a call that ends the claim. The handler's own context has perhaps ended.
func (t *Tenure) finish(call func(context.Context) error) error {
	if inProcess(t.terms.Store) {
		return call(t.terms.Values)
	}
	ctx := new(lazyctx.Context)
	ctx.For(t.terms.Values, finishTimeout)
	defer ctx.End(nil)
	return call(ctx)
}

// Extend implements [keeper.Owner], as do Tell and Lost.
func (t *Tenure) Extend(ctx context.Context) (lost bool, err error) {
	err = t.terms.Store.Extend(ctx, t.terms.Claim, 0) // the store's default, as Begin was asked for
	return errors.Is(err, idem.ErrClaimLost), err
}

// Tell does nothing: nobody else has to know.
func (*Tenure) Tell(context.Context) {}

// Lost ends the handler's context, unless the handler has completed the claim itself.
func (t *Tenure) Lost(err error) {
	if err != nil && idem.Completed(t.terms.Values, t.terms.Store, t.terms.Claim) {
		return
	}
	t.ctx.End(idem.ErrClaimLost)
	// Only now, since a logger may take long; and one that panics, in a timer's goroutine, must not end the process.
	defer func() { _ = recover() }()
	t.terms.Logger.WarnContext(t.terms.Values, "idem: claim lost while its handler runs", "error", err,
		"token", t.terms.Claim.Token)
}
