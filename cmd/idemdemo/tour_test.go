package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seed-5bb5eb37/idem"
	"github.com/stretchr/testify/require"
)

// tourWith runs the tour, in fake time, on an engine that prepare was given first.
func tourWith(t *testing.T, prepare func(*idem.Engine)) (printed string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		err = withEngine(idem.Config{}, func(e *idem.Engine) error {
			prepare(e)
			return runTour(t.Context(), &out, e)
		})
		printed = out.String()
	})
	return printed, err
}

// TestTour holds the whole text of the tour, since the README quotes it, and breaks the contract in ways that
// only need another engine or an engine that was used before.
func TestTour(t *testing.T) {
	t.Run("prints what the contract promises", func(t *testing.T) {
		printed, err := tourWith(t, func(*idem.Engine) {})
		require.NoError(t, err)
		require.Equal(t, firstLines+
			"abandoned key begun again: fresh\n"+
			"TTL run out: fresh\n"+
			"lease of a dead owner run out: taken over\n"+
			"late Complete of the dead owner: refused, idem: claim lost\n"+
			"same key, other payload: mismatch\n"+
			"8 duplicates that wait: each got the owner's 201 {\"id\":2}\n", printed)
	})

	t.Run("ends at the first wrong answer", func(t *testing.T) {
		printed, err := tourWith(t, func(e *idem.Engine) {
			_, err := e.Begin(t.Context(), order(2))
			require.NoError(t, err)
		})
		require.EqualError(t, err, "abandoned key begun again: order-2 is in progress, want fresh")
		require.Equal(t, firstLines, printed)
	})

	t.Run("shows a wrong answer", func(t *testing.T) {
		printed, err := tourWith(t, func(e *idem.Engine) {
			_, err := e.Begin(t.Context(), order(1))
			require.NoError(t, err)
		})
		require.EqualError(t, err, `first request: got "in progress", want "fresh"`)
		require.Equal(t, "first request: in progress\n", printed)
	})

	t.Run("does not hang when no waiter may sleep", func(t *testing.T) {
		var out strings.Builder
		synctest.Test(t, func(t *testing.T) {
			e, err := idem.New(idem.Config{MaxWaiters: waiting - 1})
			require.NoError(t, err)
			require.ErrorContains(t, runTour(t.Context(), &out, e), "8 duplicates that wait")
			require.NoError(t, e.Close())
		})
	})
}
