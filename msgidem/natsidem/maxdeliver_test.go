package natsidem_test

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

func limited(name string, most int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxDeliver: most}
}

// A backlog, and a consumer that is stopped in good order again and again, more often than a message may be delivered.
func TestRestartsLoseNothingWithMaxDeliver(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			const messages, restarts = 60, 10
			b := startBroker(t)
			engine := openEngine(t, idem.Config{})
			for i := range messages {
				b.publish(fmt.Sprint("p", i), "pay 7")
			}
			var effects, again, letters atomic.Int32
			inside := make(chan struct{}, messages)
			run := func() *service {
				return b.consume(b.configured(limited("billing", 3)), engine, msgidem.Config{
					Workers:    workers,
					DeadLetter: func(context.Context, msgidem.DeadLetter) error { letters.Add(1); return nil },
				}, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
					if m.Attempt > 1 {
						again.Add(1)
					}
					inside <- struct{}{}
					<-time.After(10 * time.Millisecond) // the rest of the messages waits
					effects.Add(1)
					return nil
				})
			}
			for range restarts {
				s := run()
				select {
				case <-inside:
				case <-time.After(patience):
					require.FailNow(t, "messages were lost", "%d of %d were handled", effects.Load(), messages)
				}
				s.stop()
			}
			c := b.configured(limited("billing", 3))
			require.Less(t, int(effects.Load()), messages, "it was stopped while there was work")
			run()
			b.settled(c)
			require.EqualValues(t, messages, effects.Load(), "all were handled")
			require.Zero(t, again.Load(), "a stop costs no delivery")
			require.Zero(t, letters.Load())
		})
	}
}

// Whatever the server sends while the context of Next ends is handed over, though it is late.
func TestMessageThatComesAsTheSourceStops(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.configured(limited("billing", 1))
	for i := range 20 {
		id := fmt.Sprint("p", i)
		src, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan msgidem.Delivery, 1)
		go func() {
			d, end := src.Next(ctx)
			if end != nil {
				assert.ErrorIs(t, end, context.Canceled)
			}
			assert.NoError(t, src.Close())
			got <- d
		}()
		b.eventually(func() bool {
			info, unknown := c.Info(t.Context())
			return unknown == nil && info.NumWaiting > 0
		}, "the source asked for a message")
		go cancel()
		b.publish(id, "pay 7")
		d := <-got
		if d == nil { // the request was over before the message came, and nobody was sent it
			var again *natsidem.Source
			again, err = natsidem.New(t.Context(), c, natsidem.Config{})
			require.NoError(t, err)
			next, stop := context.WithTimeout(t.Context(), patience)
			d, err = again.Next(next)
			stop()
			require.NoError(t, err, "message %s was sent to nobody", id)
			require.NoError(t, again.Close())
		}
		require.Equal(t, id, d.Message().ID)
		require.True(t, d.Message().Last)
		require.NoError(t, d.Ack(t.Context()))
	}
	b.settled(c)
}

func TestSourceWithMaxDeliver(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	next := func(js jetstream.JetStream, name string, then func(*natsidem.Source)) error {
		c, err := js.CreateConsumer(t.Context(), "orders", limited(name, 2))
		require.NoError(t, err)
		src, err := natsidem.New(t.Context(), c, natsidem.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		end := make(chan error, 1)
		if then == nil {
			go func() {
				_, failed := src.Next(ctx)
				end <- failed
			}()
			b.eventually(func() bool {
				info, unknown := c.Info(ctx)
				return unknown == nil && info.NumWaiting > 0
			}, "the source asked for a message")
			require.NoError(t, b.deleted(name))
			return <-end
		}
		then(src)
		_, err = src.Next(ctx)
		return err
	}
	t.Run("ends when it is closed", func(t *testing.T) {
		require.ErrorIs(t, next(b.js, "a", func(s *natsidem.Source) { require.NoError(t, s.Close()) }), io.EOF)
	})
	t.Run("fails when its consumer is deleted", func(t *testing.T) {
		require.ErrorIs(t, next(b.js, "b", nil), jetstream.ErrConsumerDeleted)
	})
	t.Run("fails when its consumer was deleted unnoticed", func(t *testing.T) {
		err := next(b.js, "c", func(*natsidem.Source) { require.NoError(t, b.deleted("c")) })
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	})
	t.Run("fails when its connection is closed", func(t *testing.T) {
		js := b.connect()
		err := next(js, "d", func(*natsidem.Source) { js.Conn().Close() })
		require.ErrorIs(t, err, jetstream.ErrConnectionClosed)
	})
}

func TestCloseCostsOneDelivery(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	const messages = 40
	for i := range messages {
		b.publish(fmt.Sprint("p", i), "pay 7")
	}
	c := b.consumer("billing", time.Minute)
	src, err := natsidem.New(t.Context(), c, natsidem.Config{})
	require.NoError(t, err)
	first, err := src.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, first.Ack(t.Context()))
	b.eventually(func() bool {
		info, unknown := c.Info(t.Context())
		return unknown == nil && info.NumPending == 0
	}, "all were sent ahead")
	require.NoError(t, src.Close())

	next, err := natsidem.New(t.Context(), c, natsidem.Config{})
	require.NoError(t, err)
	for range messages - 1 {
		d, err := next.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, d.Message().Attempt, "%s", d.Message().ID)
		require.NoError(t, d.Ack(t.Context()))
	}
	require.NoError(t, next.Close())
}
