package msgidem_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A handler that records its message itself, as in the transaction of its effect, has not lost its claim, although that
// can't be extended any more.
func TestHandlerCompletesItself(t *testing.T) {
	bubble(t, "and goes on", func(r *rig) {
		fn := func(ctx context.Context, _ msgidem.Message, c idem.Claim) error {
			time.Sleep(10 * time.Second)
			require.NoError(r, r.engine.Complete(ctx, c, idem.Response{}))
			time.Sleep(time.Minute)
			return context.Cause(ctx)
		}
		h, err := msgidem.New(r.engine, fn, msgidem.Config{Lease: 9 * time.Second})
		require.NoError(r, err)
		require.Equal(r, msgidem.Done, h.Handle(r.Context(), message(1)).Result)
		require.Equal(r, msgidem.Skipped, h.Handle(r.Context(), message(2)).Result)
	})
}
