// Package heed is for clients that do not heed their contexts, or not all the time.
package heed

import (
	"context"
	"time"
)

// Call calls f, and returns what it returns, or the cause of ctx once that ends. Then f goes on in a goroutine of its own
// until the client says so; what it returns is dropped. A ctx may have a deadline and no channel that tells of it: the
// one that f gets has both. When ctx never ends, f is called without a goroutine.
func Call[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	if ctx.Done() == nil {
		end, ends := ctx.Deadline()
		if !ends {
			return f(ctx)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f(ctx)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// IsOver reports whether the time of ctx is up: it has ended, or its deadline has passed. A connection that was given the
// deadline may fail before the context's timer has fired, and a context without a channel never says so by itself.
func IsOver(ctx context.Context) bool {
	end, ends := ctx.Deadline()
	return ctx.Err() != nil || ends && !time.Now().Before(end)
}
