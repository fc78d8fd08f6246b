package idemtest_test

import (
	"context"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// whole is all that a store of this module can do.
type whole interface {
	idem.Store
	idem.Inspector
	Close() error
}

// A broken store does what the store within does, but for the methods that a fault replaces.
type broken struct {
	whole
	begin    func(context.Context, idem.Request) (idem.Outcome, error)
	complete func(context.Context, idem.Claim, idem.Response) error
	abandon  func(context.Context, idem.Claim) error
	extend   func(context.Context, idem.Claim, time.Duration) error
	lookup   func(context.Context, string, string) (idem.Record, bool, error)
	forget   func(context.Context, string, string) (bool, error)
	resolve  func(context.Context, string, string, idem.Response) error
	close    func() error
}

func newBroken(s whole) *broken {
	return &broken{s, s.Begin, s.Complete, s.Abandon, s.Extend, s.Lookup, s.Forget, s.Resolve, s.Close}
}

func (b *broken) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	return b.begin(ctx, req)
}

func (b *broken) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	return b.complete(ctx, c, resp)
}

func (b *broken) Abandon(ctx context.Context, c idem.Claim) error { return b.abandon(ctx, c) }

func (b *broken) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	return b.extend(ctx, c, lease)
}

func (b *broken) Lookup(ctx context.Context, scope, key string) (idem.Record, bool, error) {
	return b.lookup(ctx, scope, key)
}

func (b *broken) Forget(ctx context.Context, scope, key string) (bool, error) {
	return b.forget(ctx, scope, key)
}

func (b *broken) Resolve(ctx context.Context, scope, key string, resp idem.Response) error {
	return b.resolve(ctx, scope, key, resp)
}

func (b *broken) Close() error { return b.close() }

// find is what the store within has under a key; the zero Record is nothing.
func (b *broken) find(scope, key string) idem.Record {
	rec, _, err := b.whole.Lookup(context.Background(), scope, key)
	if err != nil {
		return idem.Record{}
	}
	return rec
}

// mustForget makes the store within forget a key.
func (b *broken) mustForget(scope, key string) {
	_, _ = b.whole.Forget(context.Background(), scope, key)
}

// notes are what a fault remembers.
type notes[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]V
}

func (n *notes[K, V]) set(k K, v V) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.m == nil {
		n.m = map[K]V{}
	}
	n.m[k] = v
}

// get returns the zero value for what was not noted.
func (n *notes[K, V]) get(k K) V {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m[k]
}

func (n *notes[K, V]) drop(k K) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.m, k)
}

// count counts for k and returns how often it did before.
func count[K comparable](n *notes[K, int], k K) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.m == nil {
		n.m = map[K]int{}
	}
	n.m[k]++
	return n.m[k] - 1
}

// hang is what a caller does whose wake-up was lost.
func hang(ctx context.Context) (idem.Outcome, error) {
	<-ctx.Done()
	return idem.Outcome{}, context.Cause(ctx)
}

func nameOf(req idem.Request) name  { return name{req.Scope, req.Key} }
func nameOfClaim(c idem.Claim) name { return name{c.Scope, c.Key} }
