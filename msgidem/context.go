package msgidem

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
)

// settleTimeout bounds each call by which a message is settled with the store or the broker. Nothing else
// ends such a call, since it is detached from the consumer's context.
const settleTimeout = 10 * time.Second

// settling returns a context for one call that settles a message: with the values of parent, and its own
// time. Its user ends it.
func settling(parent context.Context) *lazyctx.Context {
	ctx := new(lazyctx.Context)
	ctx.For(parent, settleTimeout)
	return ctx
}
