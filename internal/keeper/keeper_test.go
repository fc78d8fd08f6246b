package keeper_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/keeper"
)

var errDown = errors.New("down")

// An owner notes when it was called, since it was made.
type owner struct {
	start  time.Time
	extend func(ctx context.Context) (bool, error) // nil: succeeds
	tell   func(ctx context.Context)               // nil: does nothing

	mu    sync.Mutex // guards what follows
	calls map[string][]time.Duration
}

func newOwner() *owner { return &owner{start: time.Now(), calls: map[string][]time.Duration{}} }

func (o *owner) note(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[call] = append(o.calls[call], time.Since(o.start))
}

func (o *owner) Extend(ctx context.Context) (bool, error) {
	o.note("extend")
	if o.extend == nil {
		return false, nil
	}
	return o.extend(ctx)
}

func (o *owner) Tell(ctx context.Context) {
	o.note("tell")
	if o.tell != nil {
		o.tell(ctx)
	}
}

func (o *owner) Lost(error) { o.note("lost") }

// keep has k keep a claim with a lease for a while.
func keep(t *testing.T, k *keeper.Keeper, o *owner, lease, every, while time.Duration) {
	t.Helper()
	k.Start(keeper.Claim{Owner: o, Context: t.Context(), Lease: lease, Every: every}, time.Now())
	time.Sleep(while)
	k.Stop()
	k.Wait()
	synctest.Wait()
}

func seconds(of ...float64) (all []time.Duration) {
	for _, s := range of {
		all = append(all, time.Duration(s*float64(time.Second)))
	}
	return all
}

func TestBeats(t *testing.T) {
	hang := func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
	for name, test := range map[string]struct {
		extend             func(context.Context) (bool, error)
		lease              time.Duration
		extends, told, out []time.Duration
	}{
		"every third":                      {nil, 12 * time.Second, seconds(4, 8, 12), seconds(4, 8, 12), nil},
		"without a claim":                  {nil, 0, nil, seconds(4, 8, 12), nil},
		"of a claim that is lost":          {func(context.Context) (bool, error) { return true, errDown }, 12 * time.Second, seconds(4), nil, seconds(4)},
		"that fail":                        {func(context.Context) (bool, error) { return false, errDown }, 6 * time.Second, seconds(4, 5, 6, 7, 8, 9, 10, 11, 12, 13), seconds(4, 5, 6, 7, 8, 9, 10, 11, 12, 13), seconds(6)},
		"that hang until their time is up": {hang, 12 * time.Second, seconds(4, 9), seconds(8, 13), seconds(12)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var k keeper.Keeper
				defer k.Close()
				o := newOwner()
				o.extend = test.extend
				keep(t, &k, o, test.lease, 4*time.Second, 13500*time.Millisecond)
				require.Equal(t, test.extends, o.calls["extend"], "extend")
				require.Equal(t, test.told, o.calls["tell"], "tell")
				require.Equal(t, test.out, o.calls["lost"], "lost")
			})
		})
	}
}

// The timer of one claim may fire in the middle of the next, or be set for too late.
func TestOneClaimAfterTheOther(t *testing.T) {
	for _, pause := range seconds(0, 0.5, 1, 3, 4, 5, 60) {
		for _, every := range seconds(0.1, 1, 4, 100) {
			synctest.Test(t, func(t *testing.T) {
				var k keeper.Keeper
				defer k.Close()
				first := newOwner()
				keep(t, &k, first, 12*time.Second, 4*time.Second, 0)
				time.Sleep(pause)
				second := newOwner()
				keep(t, &k, second, 3*every, every, 2*every+every/2)
				require.Empty(t, first.calls)
				require.Equal(t, []time.Duration{every, 2 * every}, second.calls["extend"], "%v later", pause)
				time.Sleep(time.Hour)
				require.Len(t, second.calls["extend"], 2)
			})
		}
	}
}

func TestStopAbortsTheBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k keeper.Keeper
		o := newOwner()
		o.extend = func(ctx context.Context) (bool, error) {
			<-ctx.Done()
			require.Equal(t, context.Canceled, ctx.Err())
			return true, errDown
		}
		keep(t, &k, o, time.Second, time.Minute, 61*time.Second)
		require.Len(t, o.calls["extend"], 1)
		require.Empty(t, o.calls["tell"])
		require.Empty(t, o.calls["lost"], "it was stopped, so that this is no news")
		k.Close()
		k.Close()
	})
}
