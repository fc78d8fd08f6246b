package httpidem

import (
	"context"
	"errors"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/keeper"
)

// fallbackLease is taken for the length of a lease that the store does not tell: better too often than never.
const fallbackLease = 30 * time.Second

// keep extends the claim, which was granted at now, until the keeper is stopped.
func (x *run) keep(now time.Time, lease time.Duration) {
	if lease <= 0 {
		lease = fallbackLease
	}
	x.keeper.Start(keeper.Claim{Owner: x, Context: &x.values, Lease: lease, Every: lease / 3}, now)
}

// Extend implements [keeper.Owner], as do Tell and Lost.
func (x *run) Extend(ctx context.Context) (lost bool, err error) {
	err = x.store.Extend(ctx, x.op.claim, 0) // the store's default, as Begin was asked for
	return errors.Is(err, idem.ErrClaimLost), err
}

// Tell does nothing: nobody else has to know.
func (*run) Tell(context.Context) {}

// Lost ends the handler's context, unless the handler has completed the claim itself.
func (x *run) Lost(err error) {
	if err != nil && idem.Completed(&x.values, x.store, x.op.claim) {
		return
	}
	x.conf.Logger.WarnContext(&x.values, "claim lost while its handler runs", "error", err)
	x.ctx.End(idem.ErrClaimLost)
}
