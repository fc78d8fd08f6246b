package idem

import (
	"context"
	"errors"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/keeper"
)

// A heartbeat keeps the claim of one operation of [Do].
type heartbeat struct {
	keeper.Keeper
	ctx   context.Context //nolint:containedctx // the operation's values, for Lost
	store Store
	claim Claim
	lease time.Duration // as requested: zero means the store's default to Extend as it did to Begin
	lose  func()        // tells the operation
}

// startHeartbeat extends the claim of out every third of its lease until Close. It calls lose when the
// store says that the claim is lost, and when the lease has run out without an answer to any Extend:
// another owner may be at work then.
func startHeartbeat(ctx context.Context, store Store, lease time.Duration, out Outcome, lose func()) *heartbeat {
	h := &heartbeat{ctx: ctx, store: store, claim: out.Claim, lease: lease, lose: lose}
	// The lease is reckoned from Begin's answer, and not from when it was asked, since Begin may have waited.
	h.Start(keeper.Claim{Owner: h, Context: ctx, Lease: max(out.Remaining, 1), Every: out.Remaining / 3}, time.Now())
	return h
}

// Extend implements [keeper.Owner], as do Tell and Lost.
func (h *heartbeat) Extend(ctx context.Context) (lost bool, err error) {
	err = h.store.Extend(ctx, h.claim, h.lease)
	return errors.Is(err, ErrClaimLost), err
}

func (*heartbeat) Tell(context.Context) {}

// Lost tells the operation, unless it has recorded its response itself, in the transaction of its effect for instance.
func (h *heartbeat) Lost(err error) {
	if err == nil || !Completed(h.ctx, h.store, h.claim) {
		h.lose()
	}
}
