package kafkaidem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

// Consumers join, leave in good order and crash while handlers fail: each message has its effect once, and all of
// them are committed in the end.
func TestHeavyChurn(t *testing.T) {
	t.Parallel()
	const partitions, messages, rounds = 6, 6000, 12
	b := startBroker(t, partitions)
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	effects := map[string]int{}
	set := setup{
		store: openEngine(t, idem.Config{}), handler: msgidem.Config{MaxAttempts: 1000},
		Config: kafkaidem.Config{Prefetch: 50, RevokeTimeout: 100 * time.Millisecond},
		client: []kgo.Opt{kgo.SessionTimeout(500 * time.Millisecond), kgo.RebalanceTimeout(2 * time.Second)},
		fn: func(ctx context.Context, m msgidem.Message, _ idem.Claim) error {
			select {
			case <-time.After(rand.N(10 * time.Millisecond)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if rand.IntN(10) == 0 {
				return errors.New("not yet")
			}
			mu.Lock()
			defer mu.Unlock()
			effects[m.ID]++
			return nil
		},
	}
	running := []*service{b.consume(set)}
	for round := range rounds {
		for i := range messages / rounds { // a third of the IDs twice; the others have nothing that makes up for a loss
			n := round*(messages/rounds) + i
			b.produce(int32(rng.IntN(partitions)), fmt.Sprint("p", min(n%4, 2)+n/4*4), "pay 7")
		}
		set.Unordered = round%2 == 0
		running = append(running, b.consume(set))
		if i := rng.IntN(len(running)); rng.IntN(2) == 0 {
			running[i].stop()
			running = append(running[:i], running[i+1:]...)
		} else if len(running) > 2 {
			running[i].crash()
			running = append(running[:i], running[i+1:]...)
		}
	}
	if len(running) == 0 {
		b.consume(set)
	}
	b.eventually(func() bool {
		total := int64(0)
		for p := range int32(partitions) {
			total += b.committed("billing", p)
		}
		return total == messages
	}, "all committed")
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, effects, messages/4*3)
	for id, n := range effects {
		require.Equal(t, 1, n, id)
	}
}
