package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLedger charges far more than is kept, since a place that follows from a number is easily off by one.
func TestLedger(t *testing.T) {
	t.Run("every call charges, and is found by its number", func(t *testing.T) {
		l := newLedger()
		first := l.charge(charge{Kind: "payment", Order: "a", Cents: 5})
		second := l.charge(charge{Kind: "capture", Order: "a", Cents: 5})
		require.Equal(t, 1, first.ID)
		require.False(t, first.At.IsZero())
		require.Equal(t, 2, l.total())
		require.Equal(t, 2, l.of("a"))
		require.Zero(t, l.of("b"))
		found, ok := l.find(2)
		require.True(t, ok)
		require.Equal(t, second, found)
		require.Equal(t, []charge{second, first}, l.last(8))
	})

	t.Run("charges of earlier runs give numbers and do not count", func(t *testing.T) {
		l := newLedger()
		for _, last := range []int{3, 7, 5} {
			l.goOnFrom(last)
		}
		require.Zero(t, l.total())
		made := l.charge(charge{Order: "a"})
		require.Equal(t, 8, made.ID)
		require.Equal(t, 1, l.total())
		found, ok := l.find(8)
		require.True(t, ok)
		require.Equal(t, made, found)
		_, ok = l.find(7)
		require.False(t, ok)
	})

	t.Run("an order's last charge is found among others", func(t *testing.T) {
		l := newLedger()
		l.charge(charge{Order: "a", Cents: 1})
		last := l.charge(charge{Order: "a", Cents: 2})
		l.charge(charge{Order: "b", Cents: 3})
		found, ok := l.lastOf("a")
		require.True(t, ok)
		require.Equal(t, last, found)
		_, ok = l.lastOf("c")
		require.False(t, ok)
	})

	t.Run("old charges are forgotten, their count is not", func(t *testing.T) {
		l := newLedger()
		for n := range 3*kept + 1 {
			made := l.charge(charge{Order: fmt.Sprint(n % 7)})
			found, ok := l.find(made.ID)
			require.True(t, ok)
			require.Equal(t, made, found)
			if oldest := made.ID - kept + 1; oldest > 0 {
				found, ok = l.find(oldest)
				require.True(t, ok, "charge %d after %d", oldest, made.ID)
				require.Equal(t, oldest, found.ID)
			}
		}
		require.Less(t, len(l.recent), 2*kept)
		require.Equal(t, 3*kept+1, l.total())
		for _, id := range []int{-1, 0, 1, 3*kept + 2} {
			_, ok := l.find(id)
			require.False(t, ok, "charge %d", id)
		}
	})
}
