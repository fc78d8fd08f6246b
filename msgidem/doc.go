// Package msgidem makes the consumers of a queue handle each message once. Queues deliver at least once: a message
// comes again when its producer tried twice, when a consumer was slow or died, when an acknowledgement was lost.
// A [Handler] runs a function once per message all the same, on any [idem.Store].
//
//	handler, err := msgidem.New(store, func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
//		return pay(ctx, m.Payload)
//	}, msgidem.Config{DeadLetter: toDeadLetters})
//	...
//	err = handler.Run(ctx, source) // until ctx ends; then it drains
//
// The key is the message's ID, the scope is the consumer group: two groups that read one stream handle each message
// once each. Brokers are reached through a [Source] of a [Delivery] each. Those for NATS JetStream, Kafka and
// Watermill are modules of their own below this one; for another broker it is a few lines.
//
// # What becomes of a delivery
//
//	the store says   what happens                                                          Result
//	fresh            the handler runs under the claim, with heartbeats to store and broker
//	                 nil: recorded, and only then acknowledged                              Done
//	                 an error: released, and given back for the time of Config.Backoff      Retried
//	                 idem.Permanent, or the last attempt: dead letter, recorded, terminated DeadLettered
//	                 a panic, runtime.Goexit: as an error; the consumer lives
//	                 the claim was lost: never acknowledged                                 Left
//	replay           acknowledged; or terminated, if what is recorded is a failure          Skipped
//	in progress      waits for Config.Wait, then given back until the lease is over         Retried
//	mismatch         dead letter, terminated: the ID was used for another payload           DeadLettered
//	unknown          given back; after its attempts a dead letter, for somebody to resolve  Retried
//	an error         given back for the time of Config.Backoff; never acknowledged          Retried
//
// A message is acknowledged only when the store has a record of it, so that nothing is lost: when a broker takes an
// acknowledgement from a stale delivery, as JetStream does, it is the claim's token that decides. A dead letter is
// recorded as a failure only when the hook has accepted it.
//
// A broker's count of deliveries says little of the message: what was sent ahead to a consumer that is stopped then, or
// came in an outage, is counted as well. So a message is not refused a run for it, unless the count is above
// Config.MaxDeliveries. A message that failed before in other processes is a dead letter after its next run that fails;
// one that kills its process is one after MaxDeliveries.
//
// On the last delivery that a broker allows, whatever would be given back is a dead letter. It is not recorded and means
// no more than that nobody is known to have done the message. Before that, one whose claim was lost waits for whoever has
// it.
//
// # What is guaranteed
//
// A message that was recorded as done is never run again, for as long as the record lives: Config.TTL, which has to
// exceed the time after which a message may still come. Two consumers never run one message at the same time, unless
// one of them could not extend its claim for a whole lease; its context has ended by then.
//
// What no wrapper can do is to look into the handler. If the process dies, or the store is away for longer than a
// lease, after the effect and before the record, then the message runs again ([idem.TakeOver]) or is unknown
// ([idem.Hold]). To shut that gap the record must be part of the effect's transaction: the handler completes its
// claim there itself and returns nil. Completing it again, which this package does, changes nothing.
//
// # What a broker can't do
//
// Its [Capability] says so. Without CanNak (Kafka) a message that has to come again stays in hand: Run holds it, with
// heartbeats, and handles it again, until the broker has taken what became of it; the same after a panic of an adapter
// or a store. An adapter that calls [Handler.Handle] itself does the same with the Delay of the [Outcome], or pauses
// the partition. Without CanTerm a dead letter is acknowledged. Without CanDelay
// the delay is sat out. A broker that does not count deliveries has the failures of this process counted, for up to
// 65 536 messages.
package msgidem
