package msgidem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// stuckAfter is how long Run waits for handlers whose contexts have ended.
const stuckAfter = 5 * time.Second

// leftDelay is how long a delivery is held that came to nothing although the broker will not bring it again: it did not
// take the acknowledgement, or something panicked.
const leftDelay = time.Second

// Run handles what src delivers, Config.Workers messages at a time, until ctx ends or src does. Then it takes
// no more and returns when what it has in hand is settled.
//
// After the end of ctx, and after a failure of src, handlers go on as if nothing had happened for Config.DrainTimeout
// at most; duplicates that wait are given back at once, and what is held for its next attempt is left. After [io.EOF]
// nothing is cut short: handlers, duplicates that wait and deliveries that are held take the time that they need, until
// ctx ends, and only then does Config.DrainTimeout begin.
//
// It returns nil after the end of ctx and after [io.EOF]; the error with which src failed; [ErrStuck] when
// handlers did not heed the end of their contexts. Several sources may be run at a time.
func (h *Handler) Run(ctx context.Context, src Source) error {
	if ctx == nil || src == nil {
		return errors.New("msgidem: nil context or source")
	}
	take, stop := context.WithCancel(ctx)
	defer stop()
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	c := &consumer{Handler: h, src: src, stop: stop, turn: newTurn(), places: make(chan struct{}, h.cfg.Workers)}
	hands := h.cfg.inHand()
	c.workers.Add(hands)
	for range hands {
		go c.work(work, take)
	}
	drained := make(chan struct{})
	go func() {
		c.workers.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return c.err
	case <-take.Done():
	}
	if within(drained, h.cfg.DrainTimeout) {
		return c.err
	}
	kill(ErrStopped)
	if within(drained, stuckAfter) {
		return c.err
	}
	if n := h.counters.running.Load(); n > 0 {
		return fmt.Errorf("%w: handlers still run, %d of them", ErrStuck, n)
	}
	return fmt.Errorf("%w: the source, the store or the broker does not heed its context", ErrStuck)
}

// within reports whether done is closed before d is over.
func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// A consumer is one call of Run.
type consumer struct {
	*Handler
	src     Source
	stop    context.CancelFunc // takes no more
	workers sync.WaitGroup
	places  chan struct{} // holds a value for each message that is handled

	// turn is the right to ask the source. Workers take it themselves, so there is no goroutine that fetches,
	// and no delivery that was fetched and that nobody has begun with.
	turn *turn
	err  error // why the source ended, unless in good order; set by who had the last turn
}

// work handles messages until there are no more. A handler that ends the goroutine is given another one.
func (c *consumer) work(ctx, take context.Context) {
	over := false
	at := &place{in: c.places}
	defer func() {
		at.leave()
		if over {
			c.workers.Done()
		} else {
			go c.work(ctx, take)
		}
	}()
	for {
		at.take()
		d, ok := c.next(take)
		if !ok {
			over = true
			return
		}
		c.deliver(ctx, take, d, at)
		at.leave()
	}
}

// deliver handles one delivery. If the broker can't deliver it again it is kept in hand, and in its place, and handled
// again until it is settled, or the consumer stops.
func (c *consumer) deliver(ctx, take context.Context, d Delivery, at *place) {
	if !isKept(d) {
		(&job{Handler: c.Handler, d: d, parent: ctx, stop: take, at: at}).handle()
		return
	}
	for {
		// Without the place, which is not left before the broker has the acknowledgement: those who wait for a
		// delivery would take it, and keep it from a message that is to be handled again.
		j := &job{Handler: c.Handler, d: d, parent: ctx, stop: take}
		j.apart()
		if j.out.Result == Left && j.m.AckWait == 0 { // to a broker that does nothing about it
			j.out.Result, j.out.Delay = Retried, leftDelay
		}
		if j.out.Result != Retried || !j.hold(j.out.Delay) {
			return
		}
	}
}

// isKept tells whether d stays in hand when it is not settled. One that can't even tell is left alone: handling it finds
// out why.
func isKept(d Delivery) (kept bool) {
	defer func() { _ = recover() }()
	return !d.Can().Has(CanNak)
}

// apart is handle in a goroutine of its own, for a delivery that must outlive it: a handler may end its goroutine.
func (j *job) apart() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.handle()
	}()
	<-done
}

// A place is the right of one worker to handle a message, of which there are fewer than workers. It is left when there
// is nothing more to do for the message than to tell the broker that it is done.
type place struct {
	in    chan struct{} // room for a value from each that is taken
	taken bool
}

func (p *place) take() {
	p.in <- struct{}{}
	p.taken = true
}

// leave gives the place to another message. Calling it again does nothing.
func (p *place) leave() {
	if p != nil && p.taken {
		p.taken = false
		<-p.in
	}
}

// next returns the next delivery, or false when there will be none.
func (c *consumer) next(take context.Context) (Delivery, bool) {
	if !c.turn.take() {
		return nil, false
	}
	returned := false
	defer func() {
		if !returned { // the source called runtime.Goexit, and nobody else would ever have the turn again
			c.err = errors.New("msgidem: source ended its goroutine")
			c.stop()
			c.turn.close()
		}
	}()
	d, err := c.fetch(take)
	returned = true
	if err == nil {
		c.turn.give()
		return d, true
	}
	if take.Err() == nil && !errors.Is(err, io.EOF) {
		c.err = err
		c.stop()
	}
	c.turn.close()
	return nil, false
}

// fetch asks the source. One that panics has failed.
func (c *consumer) fetch(take context.Context) (d Delivery, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = (&job{Handler: c.Handler, parent: take}).panicked("source", v)
		}
	}()
	if take.Err() != nil {
		return nil, context.Cause(take)
	}
	if d, err = c.src.Next(take); err == nil && d == nil {
		err = errors.New("msgidem: source returned no delivery and no error")
	}
	return d, err
}
