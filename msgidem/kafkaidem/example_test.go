package kafkaidem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func Example() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "orders.dead")) // instead of real brokers
	check(err)
	defer cluster.Close()
	brokers := kgo.SeedBrokers(cluster.ListenAddrs()...)
	producer, err := kgo.NewClient(brokers)
	check(err)
	defer producer.Close()
	for _, payload := range []string{"pay 7", "pay 7", "pay nobody"} { // a producer that is not sure whether it was heard
		check(producer.ProduceSync(context.Background(), &kgo.Record{
			Topic: "orders", Value: []byte(payload), Headers: []kgo.RecordHeader{{Key: "Idempotency-Key", Value: []byte("order " + payload)}},
		}).FirstErr())
	}

	store, err := idem.New(idem.Config{}) // or one on Redis or Postgres, which other processes share
	check(err)
	defer func() { _ = store.Close() }()
	ctx, stop := context.WithCancel(context.Background())
	handler, err := msgidem.New(store, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if string(m.Payload) == "pay nobody" {
			return idem.Permanent(errors.New("no such payee"))
		}
		fmt.Println(string(m.Payload))
		return nil
	}, msgidem.Config{
		DeadLetter: kafkaidem.DeadLetters(producer, "orders.dead"),
		OnOutcome: func(_ context.Context, m msgidem.Message, o msgidem.Outcome) {
			fmt.Println(m.ID, "is", o.Result)
			if o.Result == msgidem.DeadLettered {
				stop()
			}
		},
	})
	check(err)
	consumer, err := kafkaidem.New(handler, kafkaidem.Config{})
	check(err)
	client, err := kgo.NewClient(append(consumer.Options(), brokers, kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	check(err)
	check(consumer.Run(ctx, client))
	client.Close()
	// Output:
	// pay 7
	// order pay 7 is done
	// order pay 7 is skipped
	// order pay nobody is dead-lettered
}
