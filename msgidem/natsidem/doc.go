// Package natsidem lets consumers of NATS JetStream handle each message once.
//
//	source, err := natsidem.New(ctx, consumer, natsidem.Config{})
//	...
//	handler, err := msgidem.New(store, handle, msgidem.Config{DeadLetter: natsidem.DeadLetters(js, "dead.orders")})
//	...
//	err = handler.Run(ctx, source)
//
// Package msgidem says what becomes of each message. JetStream can do all that it asks for: an acknowledgement
// is confirmed by the server ([jetstream.Msg.DoubleAck]), one that is refused costs a redelivery that is
// skipped; a message is given back with a delay; one that will never be handled is terminated with the reason.
package natsidem
