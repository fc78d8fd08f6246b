// Package kafkaidem lets consumer groups of Kafka handle each message once, over a client of franz-go.
//
//	handler, err := msgidem.New(store, handle, msgidem.Config{DeadLetter: kafkaidem.DeadLetters(producer, "orders.dead")})
//	...
//	consumer, err := kafkaidem.New(handler, kafkaidem.Config{})
//	...
//	client, err := kgo.NewClient(append(consumer.Options(),
//		kgo.SeedBrokers("localhost:9092"), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"))...)
//	...
//	err = consumer.Run(ctx, client)
//	client.Close()
//
// Package msgidem says what becomes of each message. Kafka can do little of what it asks for: a group has one
// offset per partition, below which everything is done. So a message that has to wait stays in hand and is tried
// again in its place, while the client goes on to poll and to heartbeat; nothing is skipped. The offset that is
// committed never goes beyond a message that is not settled, and each message was recorded in the store before.
// What was recorded and not yet committed is delivered again after a crash, and skipped.
//
// When a partition moves to another consumer, handlers of its messages get some time to finish
// ([Config.RevokeTimeout]), then their contexts end, and what is finished is committed before the partition is
// let go. The claim keeps the new consumer from running what still runs here.
package kafkaidem
