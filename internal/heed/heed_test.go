package heed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// deaf has a deadline and no channel that tells of it.
type deaf struct {
	context.Context //nolint:containedctx // that is what it is for

	end time.Time
}

func (d deaf) Deadline() (time.Time, bool) { return d.end, true }

func TestCall(t *testing.T) {
	failed := errors.New("failed")
	answer := func(context.Context) (int, error) { return 7, failed }
	contexts := map[string]func() (context.Context, error){
		"cancelled": func() (context.Context, error) {
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(time.Second, func() { cancel(failed) })
			return ctx, failed
		},
		"a deadline without a channel": func() (context.Context, error) {
			return deaf{context.Background(), time.Now().Add(time.Second)}, context.DeadlineExceeded
		},
	}
	for name, begin := range contexts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, want := begin()
				got, err := Call(ctx, answer)
				require.Equal(t, 7, got)
				require.ErrorIs(t, err, failed)

				start, over := time.Now(), false
				got, err = Call(ctx, func(ctx context.Context) (int, error) {
					_, ends := ctx.Deadline()
					require.Equal(t, ends, name != "cancelled")
					time.Sleep(time.Minute) // whatever ctx says
					over = true
					return 7, nil
				})
				require.Zero(t, got)
				require.ErrorIs(t, err, want)
				require.Equal(t, time.Second, time.Since(start))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.True(t, over, "what was begun ends by itself")
			})
		})
	}
	t.Run("never ends", func(t *testing.T) {
		got, err := Call(context.Background(), answer)
		require.Equal(t, 7, got)
		require.ErrorIs(t, err, failed)
	})
}

func TestIsOver(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	require.False(t, IsOver(ended))
	cancel()
	require.True(t, IsOver(ended))
	require.False(t, IsOver(deaf{t.Context(), time.Now().Add(time.Hour)}))
	require.True(t, IsOver(deaf{t.Context(), time.Now()}))
}
