package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// An Asker asks a store for claims.
type Asker struct {
	Store   idem.Store
	wait    time.Duration
	timeout time.Duration // negative: none
	slow    error         // says in the log what a deadline was exceeded
}

// NewAsker returns one. A duplicate waits for the owner for wait, zero: not at all. The store has the time of timeout to
// answer, not counting that, or as long as the context if it is negative.
func NewAsker(store idem.Store, wait, timeout time.Duration) Asker {
	if inProcess(store) {
		timeout = -1
	}
	slow := fmt.Errorf("the store, a %T, did not answer within %v (Config.StoreTimeout)", store, timeout)
	return Asker{Store: store, wait: wait, timeout: timeout, slow: slow}
}

// inProcess tells whether a store never hangs, so that its calls need no timer, which takes a tenth of a request's time.
func inProcess(store idem.Store) bool {
	_, ok := store.(*idem.Engine)
	return ok
}

// Begin asks for the claim, and waits for the owner as long as may be: until ctx ends or, if that says more, done is closed. The
// first attempt does not wait, because most requests need neither a place in a queue nor a timer. When nobody is there
// any more to read the outcome it is that of the first attempt.
func (a *Asker) Begin(ctx context.Context, done <-chan struct{}, req idem.Request) (idem.Outcome, error) {
	out, err := a.ask(ctx, req)
	if err != nil || out.State != idem.InProgress || a.wait == 0 {
		return out, err
	}
	waiting, cancel := context.WithTimeout(ctx, a.wait)
	defer cancel()
	if done != nil {
		go func() {
			select {
			case <-done:
				cancel()
			case <-waiting.Done():
			}
		}()
	}
	// The store gives the place back when the client leaves, and passes a claim on that comes too late
	// (TestWaiterWhoseClientLeavesGivesItsPlaceBack).
	patient := req
	patient.Wait = true
	waited, err := a.Store.Begin(waiting, patient)
	switch {
	case err == nil:
		return waited, nil
	case waiting.Err() == nil:
		return out, err
	case ctx.Err() != nil:
		return out, nil
	default: // once more, to learn how long the lease lasts that was extended meanwhile
		again, err := a.ask(ctx, req)
		if err != nil {
			return out, err // it is still known that another one has the claim
		}
		return again, nil
	}
}

// ask is a Begin that does not wait for an owner, and for the store no longer than may be.
func (a *Asker) ask(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if a.timeout < 0 {
		return a.Store.Begin(ctx, req)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, a.slow)
	defer cancel()
	out, err := a.Store.Begin(ctx, req)
	if err != nil && context.Cause(ctx) == a.slow && !errors.Is(err, a.slow) { //nolint:errorlint // it is that very error
		err = fmt.Errorf("%w: %w", a.slow, err)
	}
	return out, err
}
