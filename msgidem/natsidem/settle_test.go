package natsidem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

func TestDeadLetterNotAcceptedIsNotLost(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	c := b.consumer("billing", time.Minute)
	letters := []func(context.Context, msgidem.DeadLetter) error{
		natsidem.DeadLetters(b.js, "nowhere"), // which no stream takes
		natsidem.DeadLetters(b.js, "dead.orders"),
	}
	var tries atomic.Int32
	s := b.consume(c, openEngine(t, idem.Config{}), msgidem.Config{
		DeadLetter: func(ctx context.Context, l msgidem.DeadLetter) error { return letters[min(tries.Add(1), 2)-1](ctx, l) },
	}, func(context.Context, msgidem.Message, idem.Claim) error {
		return idem.Permanent(errors.New("can't be done"))
	})
	b.publish("p1", "pay 7")
	b.letters(1)
	b.settled(c)
	require.Equal(t, 1, s.runsOf("p1"), "only the letter is tried again")
	require.EqualValues(t, 2, tries.Load())
}

func TestAckWaitsForTheServerUnlessAsync(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	for name, async := range map[string]bool{"waits": false, "async": true} {
		t.Run(name, func(t *testing.T) {
			src, err := natsidem.New(t.Context(), b.consumer(name, time.Minute), natsidem.Config{AckAsync: async})
			require.NoError(t, err)
			b.publish(name, "pay 7")
			d, err := src.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, b.deleted(name), "so that nobody confirms the acknowledgement")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Equal(t, async, d.Ack(ctx) == nil)
		})
	}
}
