package watermillidem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
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
