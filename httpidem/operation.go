package httpidem

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/tenure"
)

// An Operation is a request that runs under a claim, for its handler. Its methods may be called by any
// goroutine until the handler has returned.
type Operation struct {
	tenure  *tenure.Tenure
	ttl     atomic.Int64
	noStore atomic.Bool
	held    atomic.Bool
}

// FromContext returns the operation that a handler runs. There is none if the request passed without
// protection: its method is not guarded, it has no key and Config.Optional is set, or Config.FailOpen is
// and the store failed.
func FromContext(ctx context.Context) (op *Operation, ok bool) {
	op, ok = ctx.Value(operationKey{}).(*Operation)
	return op, ok
}

type operationKey struct{}

// Claim returns the claim. Its Token grows with every claim that the store grants: a downstream system
// that refuses one below the highest it has seen shuts out a handler that lost its claim. A handler may
// complete the claim itself, see [NewResponse].
func (o *Operation) Claim() idem.Claim { return o.tenure.Claim() }

// SetTTL sets how long the response is replayed. Zero, which it is without a call, and below mean the
// store's default.
func (o *Operation) SetTTL(d time.Duration) { o.ttl.Store(int64(max(d, 0))) }

// NoStore makes the key free again when the handler has returned, whatever its answer. It is for a
// handler that knows that nothing has happened.
func (o *Operation) NoStore() { o.noStore.Store(true) }

// Hold records that nobody knows whether the operation took effect, whatever the answer, see [Hold]. It is for a
// handler that knows of no other way to end: a service behind it has not answered. It comes before NoStore.
func (o *Operation) Hold() { o.held.Store(true) }
