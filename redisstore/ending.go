package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// settleTimeout bounds a call that settles a claim, which the end of the caller's context does not. It takes up to
// sharing longer.
const settleTimeout = 5 * time.Second

// sharing is within what time calls begin that end together. With a timer for each, 256 callers are a twenty-fifth slower.
const sharing = 250 * time.Millisecond

// An ending is the context of what settles a claim. It has the values of the caller's, and ends with a context that calls
// share. It has to be done then, and not only have a deadline: clients give that to a connection, and wait for one until
// they are told to stop.
type ending struct {
	context.Context //nolint:containedctx // that is what it is for

	values context.Context //nolint:containedctx // the same
}

func (e ending) Value(key any) any { return e.values.Value(key) }

// An end is the context that calls share which begin until last.
type end struct {
	context.Context //nolint:containedctx // that is what it is for

	cancel context.CancelFunc // nobody calls it: the timer is over soon
	last   time.Time
}

// ends makes the contexts of what settles claims.
type ends struct {
	bound   time.Duration // only tests change it
	current atomic.Pointer[end]
}

// of returns a context for a call that settles a claim, for a caller with ctx, who may have left already. A deadline of
// his that lies ahead counts.
func (e *ends) of(ctx context.Context) (context.Context, context.CancelFunc) {
	now, values := time.Now(), context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(now.Add(e.bound)) && ctx.Err() == nil {
		return context.WithDeadline(values, deadline)
	}
	shared := e.current.Load()
	if shared == nil || now.After(shared.last) {
		shared = &end{last: now.Add(sharing)}
		shared.Context, shared.cancel = context.WithDeadline(context.Background(), shared.last.Add(e.bound))
		e.current.Store(shared)
	}
	return ending{shared, values}, func() {}
}
