// Package watermillidem is a middleware by which the handlers of a Watermill router handle each message once. It takes
// the place of Watermill's own Deduplicator.
//
//	once, err := watermillidem.New(store, watermillidem.Config{Scope: "billing"})
//	...
//	router.AddMiddleware(poisonQueue, retry.Middleware, once.Middleware)
//
// The poison queue is one of PoisonQueueWithFilter that lets [idem.ErrInProgress] pass: a duplicate of a message that
// another consumer is handling is no dead letter. The README has it.
//
// Watermill's Deduplicator notes a message before its handler has run, so that the redelivery of one that failed is
// dropped as a duplicate, and the message is lost. This middleware records that a message is done when its handler has
// succeeded, and together with it the messages that the handler returned: a process that dies before they are
// published publishes them when the message is delivered again, without running the handler again.
//
// So messages that a handler returns are published at least once, each time with the same UUID; consumers that
// use this middleware as well handle them once.
package watermillidem
