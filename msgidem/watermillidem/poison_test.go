package watermillidem_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem/watermillidem"
)

// A sink counts what is published.
type sink struct{ n atomic.Int32 }

func (s *sink) Publish(string, ...*message.Message) error { s.n.Add(1); return nil }
func (*sink) Close() error                                { return nil }

// A duplicate of a message that runs for longer than all tries last is no dead letter: it is delivered again.
func TestDuplicateOfARunningMessageIsNotPoison(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
		letters := &sink{}
		runs := 0
		var h message.HandlerFunc = func(*message.Message) ([]*message.Message, error) {
			runs++
			time.Sleep(time.Minute)
			return nil, nil
		}
		list := recommended(t, letters, o)
		for _, outer := range slices.Backward(list) {
			h = outer(h)
		}
		deliver := func() error {
			_, err := h(message.NewMessageWithContext(t.Context(), "m1", []byte("pay 7")))
			return err
		}
		done := make(chan error, 1)
		go func() { done <- deliver() }()
		synctest.Wait()
		require.ErrorIs(t, deliver(), idem.ErrInProgress, "so Watermill does not acknowledge it")
		require.NoError(t, <-done)
		require.NoError(t, deliver(), "the redelivery is a replay")
		require.Zero(t, letters.n.Load())
		require.Equal(t, 1, runs)
	})
}
