// Package bench compares httpidem with the idempotency middlewares of others, over HTTP and in process. It
// is a module of its own, so that what the others require stays out of the root's go.mod.
package bench_test
