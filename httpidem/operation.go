package httpidem

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// An Operation is a request that runs under a claim, for its handler. Its methods may be called by any
// goroutine until the handler has returned.
type Operation struct {
	claim   idem.Claim
	ttl     atomic.Int64
	noStore atomic.Bool
}

// FromContext returns the operation that a handler runs. There is none if the request passed without
// protection: its method is not guarded, it has no key and Config.Optional is set, or Config.FailOpen is
// and the store failed.
func FromContext(ctx context.Context) (op *Operation, ok bool) {
	op, ok = ctx.Value(operationKey{}).(*Operation)
	return op, ok
}

type operationKey struct{}

// Claim returns the claim. Its Token grows with every claim that the store grants: a downstream system
// that refuses one below the highest it has seen shuts out a handler that lost its claim. A handler may
// complete the claim itself, see [NewResponse].
func (o *Operation) Claim() idem.Claim { return o.claim }

// SetTTL sets how long the response is replayed. Zero, which it is without a call, and below mean the
// store's default.
func (o *Operation) SetTTL(d time.Duration) { o.ttl.Store(int64(max(d, 0))) }

// NoStore makes the key free again when the handler has returned, whatever its answer. It is for a
// handler that knows that nothing has happened.
func (o *Operation) NoStore() { o.noStore.Store(true) }

// detached is a context with the values of a request, and the operation. It is never done: half an
// operation is worse than an answer that nobody reads. (context.WithoutCancel and context.WithValue are
// the same at the price of two allocations; this one is part of a run.)
type detached struct {
	request context.Context //nolint:containedctx // it is a context
	op      *Operation
}

func (*detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*detached) Done() <-chan struct{}       { return nil }
func (*detached) Err() error                  { return nil }

func (d *detached) Value(key any) any {
	if _, ok := key.(operationKey); ok {
		return d.op
	}
	return d.request.Value(key)
}

// bounded is a context that has a deadline which somebody else keeps, by cancelling it with the cause
// [context.DeadlineExceeded]: the timer of a run does it, so that there is one timer and not two.
type bounded struct {
	context.Context //nolint:containedctx // it is a context
	deadline        time.Time
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) Err() error {
	err := b.Context.Err()
	if err != nil && errors.Is(context.Cause(b.Context), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
