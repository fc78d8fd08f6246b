package redisstore

import (
	"context"
	"sync"
)

// maxErrands bounds the goroutines that give up claims at a time: while a server does not answer, every Begin
// would leave one behind. What is dropped over it is free when its lease has run out.
const maxErrands = 256

// A crew is the goroutines of a store.
type crew struct {
	closing context.Context //nolint:containedctx // it is how the goroutines learn of Close
	close   context.CancelFunc
	errands chan struct{} // one for each that runs

	mu      sync.Mutex
	stopped bool // no more may be started
	running sync.WaitGroup
}

func (c *crew) init() {
	c.closing, c.close = context.WithCancel(context.Background())
	c.errands = make(chan struct{}, maxErrands)
}

// run starts a goroutine for f, unless the crew was stopped, and reports whether it did. The context of f ends
// when the crew is stopped.
func (c *crew) run(f func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running.Go(func() { f(c.closing) })
	}
	return !c.stopped
}

// tryRun is run for errands, of which some may be left undone.
func (c *crew) tryRun(f func(context.Context)) bool {
	select {
	case c.errands <- struct{}{}:
	default:
		return false
	}
	return c.run(func(ctx context.Context) {
		defer func() { <-c.errands }()
		f(ctx)
	})
}

// stop ends the goroutines and waits for them.
func (c *crew) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.close()
	c.running.Wait()
}
