package msgidem

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAttemptsAreBounded(t *testing.T) {
	var a attempts
	fail := func(h *history) { h.failed++ }
	for i := range 2 * maxTracked {
		a.change(&Message{ID: fmt.Sprint(i)}, fail)
		if i%1000 == 0 { // one that is asked for now and then is not forgotten
			a.change(&Message{ID: "busy"}, fail)
		}
	}
	require.LessOrEqual(t, len(a.young)+len(a.old), maxTracked)
	require.EqualValues(t, len(a.young)+len(a.old), a.tracked.Load())
	h, n := a.of(&Message{ID: "busy"})
	require.Equal(t, 2*maxTracked/1000+1, h.failed)
	require.Equal(t, h.failed+1, n)
	h, n = a.of(&Message{ID: "0", Attempt: 4})
	require.Zero(t, h)
	require.Equal(t, 4, n, "what the broker counts, when nothing else is known")
	a.forget(&Message{ID: "busy"})
	h, _ = a.of(&Message{ID: "busy"})
	require.Zero(t, h)
}

func TestAttemptsOfTwoGroupsAreApart(t *testing.T) {
	var a attempts
	a.change(&Message{Scope: "a", ID: "b"}, func(h *history) { h.failed++ })
	_, n := a.of(&Message{Scope: "a", ID: "b"})
	require.Equal(t, 2, n)
	_, n = a.of(&Message{Scope: "", ID: "ab"})
	require.Equal(t, 1, n)
}

func TestTurn(t *testing.T) {
	t.Run("is had by one at a time, and nobody sleeps through it", func(t *testing.T) {
		turn, inside, rounds := newTurn(), 0, make(chan int)
		for range 8 {
			go func() {
				n := 0
				for ; turn.take(); n++ {
					if inside++; inside == 20_000 {
						turn.close()
						continue
					}
					turn.give()
				}
				rounds <- n
			}()
		}
		total := 0
		for range 8 {
			total += <-rounds
		}
		require.Equal(t, 20_000, total)
		require.False(t, turn.take(), "closed for good")
	})
	t.Run("lets fake time go on while others wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			turn, got := newTurn(), make(chan bool, 2)
			require.True(t, turn.take())
			for range 2 {
				go func() { got <- turn.take() }()
			}
			time.Sleep(time.Hour)
			turn.give()
			require.True(t, <-got)
			turn.close()
			require.False(t, <-got)
		})
	})
}
