// Package idem makes an operation that clients retry happen once: a payment, an order, a webhook, a queue
// message. The first caller of an idempotency key gets a claim and runs the operation; callers after it get the
// recorded response; callers in between are told that it is in progress, or wait.
//
//	engine, err := idem.New(idem.Config{})
//	...
//	resp, err := idem.Do(ctx, engine, idem.Request{Scope: tenant, Key: key, Fingerprint: fp},
//		func(ctx context.Context, claim idem.Claim) (idem.Response, error) {
//			return charge(ctx, order, claim.Token)
//		})
//
// [Engine] is the store in memory, for one process; [Engine.SnapshotFile] carries its records over a restart. Every
// [Store] keeps the same contract, which package idemtest proves; [Do] and [Call] work on any of them. Package httpidem
// serves the contract to HTTP clients.
//
// A claim has a lease: an owner that dies without a word loses the key when the lease runs out, and what happens
// then is the [LeasePolicy]. A claim also has a token that grows with every claim, so that a system downstream can
// refuse an owner that lost its claim without noticing.
package idem
