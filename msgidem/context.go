package msgidem

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// settleTimeout bounds each call by which a message is settled with the store or the broker. Nothing else
// ends such a call, since it is detached from the consumer's context.
const settleTimeout = 10 * time.Second

// A lazy is a context that can be cancelled with a cause, or has a timeout and does not end with its parent.
// The context of package context that does it is made when somebody first asks how it stands: handlers that
// don't, and stores in memory, should not pay for two contexts and a timer on each message.
type lazy struct {
	parent  context.Context //nolint:containedctx // it is a context
	timeout time.Duration   // above zero: detached from parent, and this long from when it is first asked

	mu     sync.Mutex              // guards what follows
	made   context.Context         //nolint:containedctx // it is this context; nil until somebody asks
	cancel context.CancelCauseFunc // of made
	cause  error                   // why it was ended before it was made
}

// settling returns a context for one call that settles a message: with the values of parent, and its own
// time. Its user ends it.
func settling(parent context.Context) *lazy { return &lazy{parent: parent, timeout: settleTimeout} }

func (c *lazy) Deadline() (time.Time, bool) { return c.make().Deadline() }
func (c *lazy) Done() <-chan struct{}       { return c.make().Done() }
func (c *lazy) Err() error                  { return c.make().Err() }

// Value finds also what package context keeps in a context of its own: how to cancel a child, and the cause.
// Package context looks there after Done or Err, so that made is there by then (TestLazyContext).
func (c *lazy) Value(key any) any {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if made == nil {
		return c.parent.Value(key)
	}
	return made.Value(key)
}

// end cancels the context, for the cause or for none in particular. Calling it again does nothing.
func (c *lazy) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		c.cancel(cause)
	} else if c.cause == nil {
		c.cause = cmp.Or(cause, context.Canceled)
	}
}

func (c *lazy) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return c.made
	}
	if c.timeout == 0 {
		c.made, c.cancel = context.WithCancelCause(c.parent)
	} else {
		outer, cancel := context.WithCancelCause(context.WithoutCancel(c.parent))
		inner, stop := context.WithTimeout(outer, c.timeout)
		c.made, c.cancel = inner, func(cause error) { cancel(cause); stop() }
	}
	if c.cause != nil {
		c.cancel(c.cause)
	}
	return c.made
}
