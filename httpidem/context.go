package httpidem

import (
	"cmp"
	"context"
	"sync"
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

// A lazyContext is a detached context with a deadline that can be cancelled with a cause. The contexts of
// package context that do it are only made when somebody asks how it stands: handlers that don't, and
// stores in memory, should not pay for two contexts and a timer on each request.
type lazyContext struct {
	parent   *detached
	deadline time.Time     // zero: timeout after somebody asks for the first time
	timeout  time.Duration // reading the clock is not free either

	mu     sync.Mutex              // guards what follows
	made   context.Context         //nolint:containedctx // it is this context; nil until somebody asks
	cancel context.CancelCauseFunc // of made
	cause  error                   // why it was cancelled before it was made
}

func (c *lazyContext) Deadline() (time.Time, bool) { return c.make().Deadline() }
func (c *lazyContext) Done() <-chan struct{}       { return c.make().Done() }
func (c *lazyContext) Err() error                  { return c.make().Err() }

// Value finds also what package context keeps in a context of its own: how to cancel a child, and the cause.
// It looks there after Done or Err, so that made is there by then (TestChildrenOfTheHandlersContext).
func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if made == nil {
		return c.parent.Value(key)
	}
	return made.Value(key)
}

// end cancels the context, for the cause or for none in particular. Calling it again does nothing.
func (c *lazyContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		c.cancel(cause)
	} else if c.cause == nil {
		c.cause = cmp.Or(cause, context.Canceled)
	}
}

func (c *lazyContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		outer, cancel := context.WithCancelCause(c.parent)
		if c.cause != nil {
			cancel(c.cause) // first: by now the deadline may be over as well
		}
		end := c.deadline
		if end.IsZero() {
			end = time.Now().Add(c.timeout)
		}
		inner, stop := context.WithDeadline(outer, end)
		c.made, c.cancel = inner, func(cause error) { cancel(cause); stop() }
	}
	return c.made
}
