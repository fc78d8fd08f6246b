package lazyctx_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/lazyctx"
)

type key struct{}

var errWhy = errors.New("why")

// starts are the ways to start a context, none of which ends by itself before an hour is over.
var starts = map[string]func(*lazyctx.Context, context.Context){
	"follow": (*lazyctx.Context).Follow,
	"until":  func(c *lazyctx.Context, p context.Context) { c.Until(p, time.Now().Add(time.Hour)) },
	"for":    func(c *lazyctx.Context, p context.Context) { c.For(p, time.Hour) },
}

func TestEnd(t *testing.T) {
	parent := context.WithValue(t.Context(), key{}, "v")
	for name, start := range starts {
		for _, asked := range []bool{true, false} {
			for _, cause := range []error{errWhy, nil} {
				var c lazyctx.Context
				start(&c, parent)
				require.Equal(t, "v", c.Value(key{}), name)
				if asked {
					require.NoError(t, c.Err(), name)
				}
				c.End(cause)
				c.End(errors.New("another"))
				want := cause
				if want == nil || name == "for" {
					want = context.Canceled
				}
				require.Equal(t, want, context.Cause(&c), name)
				require.Equal(t, context.Canceled, c.Err(), name)
				require.Equal(t, "v", c.Value(key{}), name)
				<-c.Done()
				child, cancel := context.WithCancel(context.WithValue(&c, key{}, "w"))
				require.Equal(t, want, context.Cause(child), name)
				cancel()
			}
		}
	}
}

func TestFollowEndsWithItsParent(t *testing.T) {
	parent, stop := context.WithCancelCause(t.Context())
	var c lazyctx.Context
	c.Follow(parent)
	child, end := context.WithCancel(&c)
	defer end()
	_, ok := c.Deadline()
	require.False(t, ok)
	stop(errWhy)
	<-child.Done()
	require.Equal(t, errWhy, context.Cause(child))
	require.Equal(t, errWhy, context.Cause(&c))
}

func TestTheOthersEndInTimeAndNotWithTheirParent(t *testing.T) {
	for name, asked := range map[string]time.Duration{"until": 0, "for": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			parent, stop := context.WithCancel(t.Context())
			stop()
			var c lazyctx.Context
			start := time.Now()
			starts[name](&c, parent)
			time.Sleep(time.Minute)
			end, ok := c.Deadline()
			require.True(t, ok)
			require.Equal(t, start.Add(time.Hour+asked), end, name)
			require.NoError(t, c.Err())
			<-c.Done()
			require.Equal(t, start.Add(time.Hour+asked), time.Now(), name)
			require.Equal(t, context.DeadlineExceeded, context.Cause(&c))
			c.End(errWhy)
			require.Equal(t, context.DeadlineExceeded, c.Err())
		})
	}
}

// What nobody asks allocates nothing.
func TestIdleIsFree(t *testing.T) {
	parent, end := t.Context(), time.Now().Add(time.Hour)
	idle := make([]lazyctx.Context, 3*101)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		idle[0].Follow(parent)
		idle[1].Until(parent, end)
		idle[2].For(parent, time.Hour)
		for i := range 3 {
			idle[i].End(nil)
		}
		idle = idle[3:]
	}))
}
