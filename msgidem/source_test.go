package msgidem_test

import (
	"context"
	"io"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// next is a source that is a function.
type next func(context.Context) (msgidem.Delivery, error)

func (n next) Next(ctx context.Context) (msgidem.Delivery, error) { return n(ctx) }

func TestSourceThatEndsItsGoroutine(t *testing.T) {
	bubble(t, "ends Run, which says so", func(r *rig) {
		err := r.start().Run(r.Context(), next(func(context.Context) (msgidem.Delivery, error) {
			runtime.Goexit()
			return nil, io.EOF
		}))
		require.ErrorContains(r, err, "source ended its goroutine")
		require.NotErrorIs(r, err, msgidem.ErrStuck)
	})
}

func TestSourceThatIsDeaf(t *testing.T) {
	bubble(t, "is not taken for a handler", func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		release := make(chan struct{})
		defer close(release)
		err := r.start().Run(ctx, next(func(context.Context) (msgidem.Delivery, error) {
			<-release
			return nil, io.EOF
		}))
		require.ErrorIs(r, err, msgidem.ErrStuck)
		require.ErrorContains(r, err, "does not heed its context")
	})
}

// Who may wait for ever is not sent back at once.
func TestDelayAfterALeaseWithoutAnEnd(t *testing.T) {
	bubble(t, "is as long as can be", func(r *rig) {
		engine, err := idem.New(idem.Config{Lease: math.MaxInt64})
		require.NoError(r, err)
		defer func() { require.NoError(r, engine.Close()) }()
		release := make(chan struct{})
		r.engine, r.store.Store, r.cfg.Wait = engine, engine, -1
		r.fn = func(context.Context, msgidem.Message, idem.Claim) error { <-release; return nil }
		h := r.start()
		go h.Handle(r.Context(), message(1))
		synctest.Wait()
		duplicate := message(2)
		require.Equal(r, msgidem.Retried, h.Handle(r.Context(), duplicate).Result)
		close(release)
		synctest.Wait()
		require.Greater(r, duplicate.delay, 24*365*time.Hour)
	})
}
