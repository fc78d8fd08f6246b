package watermillidem_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem/watermillidem"
)

var errNotYet = errors.New("not yet")

func openEngine(t testing.TB, cfg idem.Config) *idem.Engine {
	t.Helper()
	e, err := idem.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func newOnce(t testing.TB, store idem.Store, cfg watermillidem.Config) *watermillidem.Once {
	t.Helper()
	o, err := watermillidem.New(store, cfg)
	require.NoError(t, err)
	return o
}

// recommended returns the middlewares of the README, in their order.
func recommended(t testing.TB, letters message.Publisher, o *watermillidem.Once) []message.HandlerMiddleware {
	t.Helper()
	queue, err := middleware.PoisonQueueWithFilter(letters, "poison", func(err error) bool { return !errors.Is(err, idem.ErrInProgress) })
	require.NoError(t, err)
	retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, ResetContextOnRetry: true,
		ShouldRetry: func(p middleware.RetryParams) bool { return !watermillidem.IsPoison(p.Err) }}
	return []message.HandlerMiddleware{queue, retry.Middleware, o.Middleware, middleware.Recoverer}
}

// A rig is a router over a queue in memory. To publish returns when the message was acknowledged by all who
// subscribed: until then it is delivered again each time that it is refused.
type rig struct {
	testing.TB
	queue  *gochannel.GoChannel
	router *message.Router
}

func newRig(t testing.TB, middlewares ...message.HandlerMiddleware) *rig {
	t.Helper()
	r := &rig{TB: t, queue: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})}
	var err error
	r.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	r.router.AddMiddleware(middlewares...)
	return r
}

// start runs the router until the test ends.
func (r *rig) start() {
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { end <- r.router.Run(ctx) }()
	<-r.router.Running()
	r.Cleanup(func() {
		cancel()
		require.NoError(r, <-end)
		require.NoError(r, r.queue.Close())
	})
}

// handle adds a handler of orders that publishes nothing.
func (r *rig) handle(name string, h message.NoPublishHandlerFunc) {
	r.router.AddConsumerHandler(name, "orders", r.queue, h)
}

// publish returns when the message is settled.
func (r *rig) publish(uuid, payload string) {
	r.Helper()
	done := make(chan error, 1)
	go func() { done <- r.queue.Publish("orders", message.NewMessage(uuid, []byte(payload))) }()
	select {
	case err := <-done:
		require.NoError(r, err)
	case <-time.After(20 * time.Second):
		require.FailNow(r, "message "+uuid+" is not settled")
	}
}

// collect returns what is published to a topic, so far.
func (r *rig) collect(topic string) func() []*message.Message {
	ch, err := r.queue.Subscribe(context.Background(), topic)
	require.NoError(r, err)
	var mu sync.Mutex
	var list []*message.Message
	go func() {
		for m := range ch {
			mu.Lock()
			list = append(list, m)
			mu.Unlock()
			m.Ack()
		}
	}()
	return func() []*message.Message {
		mu.Lock()
		defer mu.Unlock()
		return append([]*message.Message(nil), list...)
	}
}
