// Package lazyctx has a context that costs nothing as long as nobody asks how it stands. Handlers that never ask,
// and stores in memory, should not pay for the contexts and timers of package context on each request.
package lazyctx

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A Context is a [context.Context] that ends with a cause. It is to be part of what it belongs to, so that it is not even
// an allocation, and is started once by one of Follow, Until and For. The contexts of package context that do its
// work are made when somebody first asks for Done, Err or Deadline.
type Context struct {
	parent   context.Context //nolint:containedctx // it is a context
	deadline time.Time       // zero: none, or timeout after somebody asks
	timeout  time.Duration   // reading the clock is not free either

	mu     sync.Mutex              // guards what follows
	made   context.Context         //nolint:containedctx // it is this context; nil until somebody asks
	cancel context.CancelCauseFunc // of made
	stop   context.CancelFunc      // of its timer
	cause  error                   // why it was ended before it was made
}

// Follow starts a context that ends with its parent.
func (c *Context) Follow(parent context.Context) { c.parent = parent }

// Until starts a context with the values of parent that ends at a time, whatever becomes of parent.
func (c *Context) Until(parent context.Context, end time.Time) {
	c.parent, c.deadline = parent, end
}

// For starts a context with the values of parent that ends d after somebody first asks how it stands, whatever becomes
// of parent. Its cause is none in particular, whatever End is told: that takes two contexts of package context.
func (c *Context) For(parent context.Context, d time.Duration) {
	c.parent, c.timeout = parent, max(d, 1)
}

// End ends the context, for the cause or for none in particular, nil. Calling it again does nothing.
func (c *Context) End(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		c.finish(cause)
	} else if c.cause == nil {
		c.cause = cmp.Or(cause, context.Canceled)
	}
}

// Deadline implements [context.Context].
func (c *Context) Deadline() (time.Time, bool) { return c.make().Deadline() }

// Done implements [context.Context].
func (c *Context) Done() <-chan struct{} { return c.make().Done() }

// Err implements [context.Context].
func (c *Context) Err() error { return c.make().Err() }

// Value implements [context.Context]. It finds also what package context keeps in a context of its own: how to cancel a
// child, and the cause. That is looked for after Done or Err, or when this context has ended.
func (c *Context) Value(key any) any {
	c.mu.Lock()
	idle := c.made == nil && c.cause == nil
	c.mu.Unlock()
	if idle {
		return c.parent.Value(key)
	}
	return c.make().Value(key)
}

func (c *Context) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.made != nil:
	case c.timeout > 0:
		c.made, c.stop = context.WithTimeout(context.WithoutCancel(c.parent), c.timeout)
	case c.deadline.IsZero():
		c.made, c.cancel = context.WithCancelCause(c.parent)
	default:
		var caused context.Context
		caused, c.cancel = context.WithCancelCause(context.WithoutCancel(c.parent))
		if c.cause != nil {
			c.cancel(c.cause) // first: by now the deadline may be over as well
		}
		c.made, c.stop = context.WithDeadline(caused, c.deadline)
	}
	if c.cause != nil {
		c.finish(c.cause)
	}
	return c.made
}

// finish ends what was made. It is called with mu held.
func (c *Context) finish(cause error) {
	if c.cancel != nil {
		c.cancel(cause)
	}
	if c.stop != nil {
		c.stop()
	}
}
