package natsidem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

func succeed(context.Context, msgidem.Message, idem.Claim) error { return nil }

func TestHandlerSlowerThanTheAckWaitRunsOnce(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Second)
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{}, func(context.Context, msgidem.Message, idem.Claim) error {
		<-time.After(2500 * time.Millisecond)
		return nil
	})
	b.publish("p1", "pay 7")
	b.eventually(func() bool { return s.seen(msgidem.Done) == 1 }, "done")
	b.settled(c)
	require.Equal(t, 1, s.runsOf("p1"))
	require.EqualValues(t, 1, s.handler.Stats().Deliveries, "the heartbeats kept the message from coming again")
}

func TestHandlerFailsThenSucceeds(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Minute)
	var effects atomic.Int32
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{}, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if m.Attempt == 1 {
			return errors.New("not yet")
		}
		effects.Add(1)
		return nil
	})
	b.publish("p1", "pay 7")
	b.eventually(func() bool { return s.seen(msgidem.Done) == 1 }, "done")
	b.settled(c)
	require.Equal(t, 2, s.runsOf("p1"))
	require.EqualValues(t, 1, effects.Load())
}

// A crashing store is one whose process dies, as far as a test in one process can have that: from a call of
// Complete on nothing is done any more.
type crashing struct {
	idem.Store
	before bool // or after Complete was done
	dead   chan struct{}
}

func (s *crashing) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if !s.before {
		if err := s.Store.Complete(ctx, c, resp); err != nil {
			return err
		}
	}
	close(s.dead)
	select {} // the goroutine is gone for good
}

func (s *crashing) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	select {
	case <-s.dead:
		select {}
	default:
		return s.Store.Extend(ctx, c, lease)
	}
}

// crash delivers one message to a consumer that dies when it has had its effect, and then to one that does not.
func crash(t *testing.T, before bool) *service {
	b := startBroker(t)
	engine := openEngine(t, idem.Config{Lease: 500 * time.Millisecond})
	c := b.consumer("billing", 300*time.Millisecond)
	store := &crashing{Store: engine, before: before, dead: make(chan struct{})}
	var effects atomic.Int32
	h, err := msgidem.New(store, func(context.Context, msgidem.Message, idem.Claim) error {
		effects.Add(1)
		return nil
	}, msgidem.Config{})
	require.NoError(t, err)
	src, err := natsidem.New(t.Context(), c, natsidem.Config{})
	require.NoError(t, err)
	b.publish("p1", "pay 7")
	d, err := src.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, src.Close())
	go h.Handle(context.Background(), d)
	<-store.dead
	require.EqualValues(t, 1, effects.Load())

	other := b.consumer("billing", 300*time.Millisecond)
	s := b.consume(other, engine, msgidem.Config{}, succeed)
	b.eventually(func() bool { return s.seen(msgidem.Done)+s.seen(msgidem.Skipped) > 0 }, "settled by the other")
	b.settled(other)
	return s
}

func TestCrashBetweenEffectAndComplete(t *testing.T) {
	t.Parallel()
	s := crash(t, true)
	require.Equal(t, 1, s.runsOf("p1"), "it was not recorded, so that it runs again when the lease is over")
}

func TestCrashBetweenCompleteAndAck(t *testing.T) {
	t.Parallel()
	s := crash(t, false)
	require.Zero(t, s.runsOf("p1"))
	require.Positive(t, s.seen(msgidem.Skipped))
}

func TestAckOfAStaleDelivery(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	engine := openEngine(t, idem.Config{})
	c := b.consumer("billing", 100*time.Millisecond)
	src, err := natsidem.New(t.Context(), c, natsidem.Config{})
	require.NoError(t, err)
	b.publish("p1", "pay 7")
	stale, err := src.Next(t.Context())
	require.NoError(t, err)
	current, err := src.Next(t.Context()) // the broker did not hear of the first
	require.NoError(t, err)
	require.Equal(t, 2, current.Message().Attempt)

	// The stale one's handler loses its claim to the current one's, and then returns.
	inside, release := make(chan struct{}), make(chan struct{})
	done := make(chan msgidem.Outcome, 1)
	slow, err := msgidem.New(engine, func(context.Context, msgidem.Message, idem.Claim) error {
		close(inside)
		<-release
		return nil
	}, msgidem.Config{})
	require.NoError(t, err)
	go func() { done <- slow.Handle(t.Context(), stale) }()
	<-inside
	_, err = engine.Forget(t.Context(), stale.Message().Scope, "p1")
	require.NoError(t, err)
	var first msgidem.Outcome
	h, err := msgidem.New(engine, func(context.Context, msgidem.Message, idem.Claim) error {
		close(release)
		first = <-done
		info, infoErr := c.Info(t.Context())
		require.NoError(t, infoErr)
		require.Equal(t, 1, info.NumAckPending, "the stale delivery's ack would have ended the message")
		return nil
	}, msgidem.Config{})
	require.NoError(t, err)
	require.Equal(t, msgidem.Done, h.Handle(t.Context(), current).Result)
	require.Equal(t, msgidem.Left, first.Result)
	require.ErrorIs(t, first.Err, idem.ErrClaimLost)
	require.NoError(t, src.Close())
	b.settled(c)
}

func TestPublishedAgainAfterTheBrokersWindow(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Minute)
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{}, succeed)
	b.publish("p1", "pay 7")
	b.publish("p1", "pay 7") // within the window: the broker drops it
	b.eventually(func() bool { return s.seen(msgidem.Done) == 1 }, "done")
	b.eventually(func() bool {
		b.publish("p1", "pay 7")
		return s.seen(msgidem.Skipped) > 0
	}, "the window is over, and the duplicate was skipped")
	b.settled(c)
	require.Equal(t, 1, s.runsOf("p1"))
}

func TestTwoGroupsHandleItOnceEach(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	engine := openEngine(t, idem.Config{})
	var all []*service
	for _, name := range []string{"billing", "mail"} {
		all = append(all, b.consume(b.consumer(name, time.Minute), engine, msgidem.Config{}, succeed))
	}
	for i := range 20 {
		b.publish(fmt.Sprint("p", i), "pay 7")
	}
	for _, s := range all {
		b.eventually(func() bool { return s.seen(msgidem.Done) == 20 }, "done")
		for i := range 20 {
			require.Equal(t, 1, s.runsOf(fmt.Sprint("p", i)))
		}
	}
}

func TestPoison(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Minute)
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{MaxAttempts: 3}, func(context.Context, msgidem.Message, idem.Claim) error {
		return errors.New("can't\nbe done")
	})
	b.publish("p1", "pay 7")
	l := b.letters(1)[0]
	require.Equal(t, "pay 7", string(l.Data))
	require.Equal(t, "t1", l.Header.Get("Trace"))
	require.Equal(t, "msgidem: attempts used up: can't be done", l.Header.Get(natsidem.ReasonHeader))
	require.Equal(t, []string{"p1", "orders/billing", "orders.new", "orders", "1"}, []string{
		l.Header.Get(natsidem.IDHeader), l.Header.Get(natsidem.ScopeHeader), l.Header.Get(natsidem.SubjectHeader),
		l.Header.Get(natsidem.StreamHeader), l.Header.Get(natsidem.SequenceHeader),
	})
	require.Equal(t, "orders/billing/orders/1", l.Header.Get(jetstream.MsgIDHeader), "the same if the letter comes twice")
	b.settled(c)
	require.Equal(t, 3, s.runsOf("p1"))

	// Then nothing more, also when it is published anew.
	b.eventually(func() bool {
		b.publish("p1", "pay 7")
		return s.seen(msgidem.Skipped) > 0
	}, "skipped")
	b.settled(c)
	require.Equal(t, 3, s.runsOf("p1"))
	b.letters(1)
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Minute)
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{}, succeed)
	b.publish("p1", "pay 7")
	b.eventually(func() bool { return s.seen(msgidem.Done) == 1 }, "done")
	b.eventually(func() bool {
		b.publish("p1", "pay 8")
		return s.seen(msgidem.DeadLettered) == 1
	}, "the window is over")
	l := b.letters(1)[0]
	require.Equal(t, "pay 8", string(l.Data))
	require.Contains(t, l.Header.Get(natsidem.ReasonHeader), "fingerprint")
	b.settled(c)
	require.Equal(t, 1, s.runsOf("p1"))
}

func TestShutdownWithWorkInHand(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	engine := openEngine(t, idem.Config{})
	c := b.consumer("billing", time.Minute)
	inside, release := make(chan struct{}, 100), make(chan struct{})
	first := b.consume(c, engine, msgidem.Config{Workers: 4}, func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
		inside <- struct{}{}
		<-release
		return ctx.Err()
	})
	for i := range 50 {
		b.publish(fmt.Sprint("p", i), "pay 7")
	}
	for range 4 {
		<-inside
	}
	stopped := make(chan struct{})
	go func() {
		first.stop()
		close(stopped)
	}()
	close(release)
	<-stopped
	done := first.seen(msgidem.Done)
	require.GreaterOrEqual(t, done, 4, "what ran was finished and acknowledged")

	// What the server had sent ahead did not wait for the ack wait of a minute.
	second := b.consume(b.consumer("billing", time.Minute), engine, msgidem.Config{}, succeed)
	b.eventually(func() bool { return second.seen(msgidem.Done)+done == 50 }, "the rest")
	b.settled(c)
	for i := range 50 {
		id := fmt.Sprint("p", i)
		require.Equal(t, 1, first.runsOf(id)+second.runsOf(id))
	}
}

func TestEightConsumersOneMessage(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	engine := openEngine(t, idem.Config{})
	// Eight deliveries of it at a time: nobody acknowledges within the ack wait.
	c := b.consumer("billing", 50*time.Millisecond)
	src, err := natsidem.New(t.Context(), c, natsidem.Config{})
	require.NoError(t, err)
	b.publish("p1", "pay 7")
	var list []msgidem.Delivery
	for range 8 {
		d, err := src.Next(t.Context())
		require.NoError(t, err)
		list = append(list, d)
	}
	var runs atomic.Int32
	results := make(chan msgidem.Outcome)
	for _, d := range list {
		h, err := msgidem.New(engine, func(context.Context, msgidem.Message, idem.Claim) error {
			runs.Add(1)
			<-time.After(500 * time.Millisecond)
			return nil
		}, msgidem.Config{MaxAttempts: 100})
		require.NoError(t, err)
		go func() { results <- h.Handle(t.Context(), d) }()
	}
	done := 0
	for range 8 {
		if out := <-results; out.Result == msgidem.Done {
			done++
		}
	}
	require.NoError(t, src.Close())
	require.Equal(t, 1, done)
	require.EqualValues(t, 1, runs.Load())
	b.settled(c)
}

func TestLastDeliveryIsNotLost(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.configured(jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 2, BackOff: []time.Duration{time.Second, time.Minute},
	})
	var waits []time.Duration
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{}, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		waits = append(waits, m.AckWait)
		return errors.New("not yet")
	})
	b.publish("p1", "pay 7")
	require.Contains(t, b.letters(1)[0].Header.Get(natsidem.ReasonHeader), "does not deliver the message again")
	b.settled(c)
	require.Equal(t, 2, s.runsOf("p1"))
	require.Equal(t, []time.Duration{time.Second, time.Minute}, waits)
}

func TestNew(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	t.Run("wants a consumer whose acknowledgements are explicit", func(t *testing.T) {
		c := b.configured(jetstream.ConsumerConfig{Durable: "none", AckPolicy: jetstream.AckNonePolicy})
		_, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.ErrorContains(t, err, "consumer none has AckPolicy AckNone, want explicit")
	})
	t.Run("says what is wrong with its Config", func(t *testing.T) {
		_, err := natsidem.New(t.Context(), b.consumer("a", time.Minute), natsidem.Config{Prefetch: -1})
		require.ErrorContains(t, err, "Config.Prefetch is -1, want 0 to 10000")
		_, err = natsidem.New(t.Context(), nil, natsidem.Config{})
		require.ErrorContains(t, err, "nil")
	})
	t.Run("fails when the consumer is gone", func(t *testing.T) {
		c := b.consumer("gone", time.Minute)
		require.NoError(t, b.deleted("gone"))
		_, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	})
}

func (b *broker) deleted(name string) error { return b.js.DeleteConsumer(b.Context(), "orders", name) }

func TestSource(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	t.Run("ends when it is closed", func(t *testing.T) {
		src, err := natsidem.New(t.Context(), b.consumer("a", time.Minute), natsidem.Config{})
		require.NoError(t, err)
		require.NoError(t, src.Close())
		require.NoError(t, src.Close())
		_, err = src.Next(t.Context())
		require.ErrorIs(t, err, io.EOF)
	})
	t.Run("fails when its consumer is deleted", func(t *testing.T) {
		c := b.consumer("b", time.Minute)
		src, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.NoError(t, err)
		h, err := msgidem.New(openEngine(t, idem.Config{}), succeed, msgidem.Config{})
		require.NoError(t, err)
		end := make(chan error)
		go func() { end <- h.Run(t.Context(), src) }()
		b.eventually(func() bool {
			info, err := c.Info(t.Context())
			return err == nil && info.NumWaiting > 0
		}, "the source asked for messages")
		require.NoError(t, b.deleted("b"))
		require.ErrorIs(t, <-end, jetstream.ErrConsumerDeleted)
	})
	t.Run("fails when its connection is closed", func(t *testing.T) {
		js := b.connect()
		c, err := js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
		require.NoError(t, err)
		src, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.NoError(t, err)
		js.Conn().Close()
		_, err = src.Next(t.Context())
		require.ErrorIs(t, err, jetstream.ErrConnectionClosed)
	})
	t.Run("names messages as it is told, or by their place in the stream", func(t *testing.T) {
		c := b.consumer("d", time.Minute)
		_, err := b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders.new", Data: []byte("x")})
		require.NoError(t, err)
		src, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.NoError(t, err)
		d, err := src.Next(t.Context())
		require.NoError(t, err)
		raw, ok := d.Message().Raw.(jetstream.Msg)
		require.True(t, ok)
		require.Equal(t, msgidem.Message{
			ID: "orders/1", Scope: "orders/d", Payload: []byte("x"), Attempt: 1, AckWait: time.Minute, Raw: raw,
		}, d.Message())
		require.NoError(t, src.Close())
		named, err := natsidem.New(t.Context(), c, natsidem.Config{ID: func(m jetstream.Msg) string { return string(m.Data()) }, Scope: "s"})
		require.NoError(t, err)
		require.Equal(t, "x", named.Delivery(raw).Message().ID)
		require.Equal(t, "s", named.Delivery(raw).Message().Scope)
		require.NoError(t, named.Close())
	})
}
