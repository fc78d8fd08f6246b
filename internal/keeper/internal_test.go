package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type idle struct{ _ int }

func (*idle) Extend(context.Context) (bool, error) { return false, nil }
func (*idle) Tell(context.Context)                 {}
func (*idle) Lost(error)                           {}

// What says that a lease is over may come when the keeper has another claim already, which must be told of its own.
func TestLeaseThatWasOverLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		defer k.Close()
		first, second := new(idle), new(idle)
		for _, owner := range []Owner{first, second} {
			k.Stop()
			k.Start(Claim{Owner: owner, Context: t.Context(), Lease: time.Minute, Every: time.Second}, time.Now())
		}
		require.False(t, k.expired(first))
		require.True(t, k.expired(second))
		require.False(t, k.expired(second), "told once")
	})
}
