package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A demo is one run of the demonstration.
type demo struct {
	options
	broker *broker
	bank   *bank
	engine *idem.Engine // the store that all consumers share

	published, deliveries, runs, skipped, retried, killed atomic.Int64
	produced                                              atomic.Bool

	mu    sync.Mutex // guards lives
	lives []*life    // of the consumers that are there now
}

// demonstrate does it all, and tells how it goes on the way.
func demonstrate(ctx context.Context, o options, progress io.Writer) (*report, error) {
	start := time.Now()
	engine, err := idem.New(idem.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = engine.Close() }()
	b, err := startBroker(ctx)
	if err != nil {
		return nil, err
	}
	defer b.close()
	d := &demo{options: o, broker: b, bank: newBank(), engine: engine}

	all, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	defer stop()
	for range o.consumers {
		all.Go(func() error { return d.restart(working) })
	}
	all.Go(func() error { return d.produce(ctx) })
	all.Go(func() error { d.kill(working); return nil })
	all.Go(func() error {
		defer stop()
		return d.watch(ctx, progress)
	})
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return d.report(context.WithoutCancel(ctx), time.Since(start))
}

// produce publishes the bills, and some of them again when the broker does not recognise them any more.
func (d *demo) produce(ctx context.Context) error {
	again := int(float64(d.payments) * d.twice)
	for i := range d.payments + again {
		if i == d.payments {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(2 * window):
			}
		}
		n := i % d.payments
		_, err := d.broker.js.Publish(ctx, bills+".new", fmt.Appendf(nil, `{"bill":%d,"cents":%d}`, n, 100+n%9900), jetstream.WithMsgID(billID(n)))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		d.published.Add(1)
	}
	d.produced.Store(true)
	return nil
}

// billID is the idempotency key of a bill: the same each time that it is published.
func billID(n int) string { return fmt.Sprintf("bill-%06d", n) }

// isPoison tells whether a bill can never be paid: one in 250.
func isPoison(id string) bool {
	return strings.HasSuffix(id, "13") && strings.ContainsAny(id[len(id)-3:len(id)-2], "037")
}

// restart runs a consumer, and another one when it was killed, until ctx ends.
func (d *demo) restart(ctx context.Context) error {
	for ctx.Err() == nil {
		l := &life{dead: make(chan struct{})}
		d.mu.Lock()
		d.lives = append(d.lives, l)
		d.mu.Unlock()
		err := d.consume(ctx, l)
		l.end()
		d.mu.Lock()
		d.lives = without(d.lives, l)
		d.mu.Unlock()
		if err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
	}
	return nil
}

func without(lives []*life, gone *life) []*life {
	rest := lives[:0]
	for _, l := range lives {
		if l != gone {
			rest = append(rest, l)
		}
	}
	return rest
}

// kill kills a consumer now and then.
func (d *demo) kill(ctx context.Context) {
	if d.options.kill == 0 {
		return
	}
	tick := time.NewTicker(d.options.kill)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		if n := len(d.lives); n > 0 {
			d.lives[rand.N(n)].end()
			d.killed.Add(1)
		}
		d.mu.Unlock()
	}
}

// watch writes a line each second, and returns when the broker has nothing left.
func (d *demo) watch(ctx context.Context, progress io.Writer) error {
	look, line := time.NewTicker(50*time.Millisecond), time.NewTicker(time.Second)
	defer look.Stop()
	defer line.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-line.C:
			fmt.Fprintf(progress, "%d of %d bills settled, %d deliveries, %d consumers killed\n",
				d.bank.settled(), d.payments, d.deliveries.Load(), d.killed.Load())
		case <-look.C:
			// In this order: what is published after the second look is not seen by it.
			produced := d.produced.Load()
			left, err := d.broker.left(ctx)
			if err != nil {
				return fmt.Errorf("broker: %w", err)
			}
			if produced && left == 0 {
				return nil
			}
		}
	}
}

// count is told of every delivery.
func (d *demo) count(_ context.Context, _ msgidem.Message, o msgidem.Outcome) {
	d.deliveries.Add(1)
	switch o.Result {
	case msgidem.Skipped:
		d.skipped.Add(1)
	case msgidem.Retried:
		d.retried.Add(1)
	}
}
