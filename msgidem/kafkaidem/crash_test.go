package kafkaidem_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

// A dying store is one whose process dies, as far as a test in one process can have that: from the call of Complete for
// message p1 on nothing is done any more about that.
type dying struct {
	idem.Store
	dead chan struct{}
}

func (s *dying) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if c.Key != "p1" {
		return s.Store.Complete(ctx, c, resp)
	}
	close(s.dead)
	select {} // the goroutine is gone for good
}

func (s *dying) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	select {
	case <-s.dead:
		select {}
	default:
		return s.Store.Extend(ctx, c, lease)
	}
}

func TestCrashBetweenEffectAndComplete(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	b := startBroker(t, 2)
	engine := openEngine(t, idem.Config{Lease: lease})
	store := &dying{Store: engine, dead: make(chan struct{})}
	session := []kgo.Opt{kgo.SessionTimeout(500 * time.Millisecond)}
	var effects atomic.Int32
	runs := make(chan time.Time, 10)
	fn := func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if m.ID == "p1" {
			runs <- time.Now()
			effects.Add(1)
		}
		return nil
	}
	first := b.consume(setup{store: store, client: session, fn: fn, Config: kafkaidem.Config{DrainTimeout: time.Millisecond}})
	b.produce(0, "p1", "pay 7")
	began := receive(b, runs)
	receive(b, store.dead)
	b.produce(1, "p0", "pay 7")
	b.commits("billing", 1, 1) // p1 might have been committed as well by now
	first.crash()
	require.Zero(t, b.committed("billing", 0))

	second := b.consume(setup{store: engine, client: session, fn: fn})
	b.produce(0, "p2", "pay 7")
	b.commits("billing", 0, 2)
	require.Equal(t, []string{"p1", "p2"}, second.ran(), "it was not recorded, so that it runs again")
	require.EqualValues(t, 2, effects.Load())
	require.GreaterOrEqual(t, receive(b, runs).Sub(began), lease-lease/10, "when the lease is over")
}
