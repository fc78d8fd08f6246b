package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// errKilled is what a process that was killed would not live to see.
var errKilled = errors.New("killed")

// A life is that of a consumer, which stands for a process of its own. Its end is that of kill -9, as far as that can
// be had inside one process: no payment is made any more, the store is out of reach, the connection to the broker
// is cut with all that is buffered, and nothing is given back.
type life struct {
	wire wire
	dead chan struct{}
	once sync.Once
}

func (l *life) end() {
	l.once.Do(func() {
		close(l.dead)
		l.wire.cut()
	})
}

func (l *life) over() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// sleep returns false if the life ends before d is over.
func (l *life) sleep(d time.Duration) bool {
	select {
	case <-l.dead:
		return false
	case <-time.After(d):
		return true
	}
}

// A mortal store is the one that all consumers share, as one of them sees it.
type mortal struct {
	idem.Store
	life *life
}

func (s mortal) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if s.life.over() {
		return idem.Outcome{}, idem.ErrClosed
	}
	return s.Store.Begin(ctx, req)
}

func (s mortal) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if s.life.over() {
		return idem.ErrClosed
	}
	return s.Store.Complete(ctx, c, resp)
}

func (s mortal) Abandon(ctx context.Context, c idem.Claim) error {
	if s.life.over() {
		return idem.ErrClosed
	}
	return s.Store.Abandon(ctx, c)
}

func (s mortal) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	if s.life.over() {
		return idem.ErrClosed
	}
	return s.Store.Extend(ctx, c, lease)
}

// connect returns the durable consumer over a connection of the life's own.
func (d *demo) connect(ctx context.Context, l *life) (jetstream.Consumer, *nats.Conn, error) {
	l.wire.server = d.broker.server
	conn, err := nats.Connect("", nats.InProcessServer(&l.wire), nats.NoReconnect(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // a cut wire is no news
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, conn, err
	}
	c, err := js.Consumer(ctx, bills, group)
	return c, conn, err
}

// consume is the life of one consumer: it ends with ctx in good order, or by being killed.
func (d *demo) consume(ctx context.Context, l *life) error {
	consumer, conn, err := d.connect(ctx, l)
	if conn != nil {
		defer conn.Close()
	}
	if err == nil {
		if d.unguarded {
			err = d.consumePlain(ctx, consumer, l)
		} else {
			err = d.consumeOnce(ctx, consumer, l)
		}
	}
	if l.over() || ctx.Err() != nil {
		return nil // what a dead consumer says of it does not matter
	}
	return err
}

// consumeOnce is all that a service has to do: a source, a handler, and Run.
func (d *demo) consumeOnce(ctx context.Context, consumer jetstream.Consumer, l *life) error {
	source, err := natsidem.New(ctx, consumer, natsidem.Config{})
	if err != nil {
		return err
	}
	letters := natsidem.DeadLetters(d.broker.js, dead+"."+group)
	handler, err := msgidem.New(mortal{d.engine, l}, func(_ context.Context, m msgidem.Message, c idem.Claim) error {
		return d.handle(l, m.ID, m.Attempt, func() error {
			return d.engine.Complete(ctx, c, idem.Response{})
		})
	}, msgidem.Config{
		Workers: d.workers, MaxAttempts: 20, Lease: ackWait,
		Backoff: func(int) time.Duration { return 50 * time.Millisecond },
		DeadLetter: func(ctx context.Context, letter msgidem.DeadLetter) error {
			if failed := letters(ctx, letter); failed != nil {
				return failed
			}
			d.bank.refuse(letter.Message.ID)
			return nil
		},
		OnOutcome: d.count,
	})
	if err != nil {
		return err
	}
	if err := handler.Run(ctx, source); err != nil {
		return err
	}
	return source.Close()
}

// consumePlain is what one writes without idem: pay, then acknowledge.
func (d *demo) consumePlain(ctx context.Context, consumer jetstream.Consumer, l *life) error {
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	var workers sync.WaitGroup
	for range d.workers {
		workers.Go(func() {
			for !l.over() {
				m, err := messages.Next(jetstream.NextContext(ctx))
				if err != nil {
					return
				}
				d.settle(m, l)
			}
		})
	}
	workers.Wait()
	return nil
}

func (d *demo) settle(m jetstream.Msg, l *life) {
	d.deliveries.Add(1)
	id, attempt := m.Headers().Get(jetstream.MsgIDHeader), 1
	if meta, err := m.Metadata(); err == nil {
		attempt = int(meta.NumDelivered)
	}
	err := func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		return d.handle(l, id, attempt, func() error { return nil })
	}()
	switch {
	case err == nil:
		err = m.Ack()
	case errors.Is(err, errClosed):
		d.bank.refuse(id)
		err = m.Term()
	default:
		d.retried.Add(1)
		err = m.NakWithDelay(50 * time.Millisecond)
	}
	_ = err // it comes again, then
}

// errClosed is why a bill will never be paid.
var errClosed = errors.New("the account is closed")

// handle pays a bill. Now and then it takes longer than the broker waits, fails, or panics; which, is drawn from
// the seed, the bill and the attempt.
func (d *demo) handle(l *life, id string, attempt int, record func() error) error {
	d.runs.Add(1)
	if isPoison(id) {
		return idem.Permanent(errClosed)
	}
	chance := d.chance(id, attempt)
	pause := time.Duration(chance.Float64() * float64(2*time.Millisecond))
	if chance.Float64() < 0.005 {
		pause = ackWait + ackWait/2
	}
	if !l.sleep(pause) {
		return errKilled
	}
	switch p := chance.Float64(); {
	case p < 0.05:
		return errors.New("the line is busy")
	case p < 0.07:
		panic("a bug")
	}
	return d.bank.pay(id, func() error {
		if l.over() {
			return errKilled
		}
		return record()
	})
}

// chance returns what is drawn from, the same for an attempt in each run of the program.
func (d *demo) chance(id string, attempt int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, id, " ", attempt)
	return rand.New(rand.NewPCG(d.seed, h.Sum64()))
}
