package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// A bounded context has the values of another one, of which nothing else counts, and a deadline. It is done some moments
// after that: clients give the deadline to a connection, and wait until they are told to stop where they have none yet. A
// timer for each call would cost a fiftieth of it, so that calls that begin at about the same time share one.
type bounded struct {
	context.Context //nolint:containedctx // that is what it is for

	end  time.Time
	done <-chan struct{}
}

func (b bounded) Deadline() (time.Time, bool) { return b.end, true }
func (b bounded) Done() <-chan struct{}       { return b.done }

func (b bounded) Err() error {
	if time.Now().Before(b.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// windowLength is how much later than its deadline a bounded context is done at most.
const windowLength = 250 * time.Millisecond

// A window is what calls share that begin before its end.
type window struct {
	end   time.Time
	bound time.Duration
	done  chan struct{}
}

// bounds makes bounded contexts.
type bounds struct{ current atomic.Pointer[window] }

// of returns a context that ends after bound.
func (b *bounds) of(ctx context.Context, now time.Time, bound time.Duration) bounded {
	w := b.current.Load()
	if w == nil || w.bound != bound || !now.Before(w.end) {
		w = &window{end: now.Add(windowLength), bound: bound, done: make(chan struct{})}
		time.AfterFunc(windowLength+bound, func() { close(w.done) })
		b.current.Store(w)
	}
	return bounded{context.WithoutCancel(ctx), now.Add(bound), w.done}
}
