package watermillidem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem/watermillidem"
)

func Example() {
	store, err := idem.New(idem.Config{}) // or one on Redis or Postgres, which other processes share
	if err != nil {
		panic(err)
	}
	defer func() { _ = store.Close() }()
	once, err := watermillidem.New(store, watermillidem.Config{Scope: "billing"})
	if err != nil {
		panic(err)
	}

	queue := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(once.Middleware)
	attempt := 0
	router.AddConsumerHandler("payments", "orders", queue, func(m *message.Message) error {
		if attempt++; attempt == 1 {
			fmt.Println("failed:", string(m.Payload))
			return errors.New("not yet")
		}
		fmt.Println("done:", string(m.Payload))
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()

	for range 3 { // a publisher that is not sure whether it was heard
		if err := queue.Publish("orders", message.NewMessage("m1", []byte("pay 7"))); err != nil {
			panic(err)
		}
	}
	if err := router.Close(); err != nil {
		panic(err)
	}
	fmt.Println("duplicates:", once.Stats().Replays)
	// Output:
	// failed: pay 7
	// done: pay 7
	// duplicates: 2
}

// A message that had all its tries goes to the poison queue; a duplicate of one that is being handled does not.
func Example_poisonQueue() {
	queue := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	poisonQueue, err := middleware.PoisonQueueWithFilter(queue, "orders.poison", func(err error) bool {
		return !errors.Is(err, idem.ErrInProgress) // another consumer has the message: it is not poison
	})
	if err != nil {
		panic(err)
	}
	retry := middleware.Retry{MaxRetries: 3, ResetContextOnRetry: true, ShouldRetry: func(p middleware.RetryParams) bool {
		return !watermillidem.IsPoison(p.Err) // trying again can't help
	}}
	once, closeStore := newExample()
	defer func() { _ = closeStore() }()
	router.AddMiddleware(poisonQueue, retry.Middleware, once.Middleware, middleware.Recoverer)
	router.AddConsumerHandler("payments", "orders", queue, func(m *message.Message) error {
		fmt.Println("refused:", string(m.Payload))
		return idem.Permanent(errors.New("card declined"))
	})
	router.AddConsumerHandler("letters", "orders.poison", queue, func(m *message.Message) error {
		fmt.Println("letter:", m.Metadata.Get(middleware.ReasonForPoisonedKey))
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	if err := queue.Publish("orders", message.NewMessage("m1", []byte("pay 7"))); err != nil {
		panic(err)
	}
	if err := router.Close(); err != nil {
		panic(err)
	}
	// Output:
	// refused: pay 7
	// letter: card declined
}

func newExample() (once *watermillidem.Once, closeStore func() error) {
	store, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	once, err = watermillidem.New(store, watermillidem.Config{Scope: "billing"})
	if err != nil {
		panic(err)
	}
	return once, store.Close
}
