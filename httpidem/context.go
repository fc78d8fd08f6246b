package httpidem

import (
	"context"
	"time"
)

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
