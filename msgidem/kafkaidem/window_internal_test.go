package kafkaidem

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The window against a plain list of which all is looked at.
func TestWindowIsTheContiguousPrefix(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := newWindow()
		var offsets []int64
		var settled []bool
		offset, prefix, peak := int64(0), 0, 0
		for range 1000 {
			if rng.IntN(2) > 0 {
				offset += 1 + int64(rng.IntN(3)) // gaps, as compaction leaves them
				if rng.IntN(200) == 0 {
					offset = 0 // a reset
				}
				n := w.add(&kgo.Record{Offset: offset, LeaderEpoch: int32(offset % 7)})
				require.EqualValues(t, len(offsets), n)
				offsets, settled = append(offsets, offset), append(settled, false)
			} else if len(offsets) > prefix {
				n := prefix + rng.IntN(min(len(offsets)-prefix, 20))
				settled[n] = true
				w.settle(uint64(n))
				w.settle(uint64(n)) // again: nothing moves
			}
			for prefix < len(settled) && settled[prefix] {
				prefix++
			}
			want := kgo.EpochOffset{Epoch: -1, Offset: -1}
			if prefix > 0 {
				last := offsets[prefix-1]
				want = kgo.EpochOffset{Epoch: int32(last % 7), Offset: last + 1}
			}
			require.Equal(t, want, w.next, "seed %d", seed)
			require.Equal(t, len(offsets)-prefix, w.len())
			peak = max(peak, w.len())
			require.LessOrEqual(t, len(w.entries), 2*peak+2, "what is settled is let go")
		}
	}
}

func TestErrorsThatEndTheConsumer(t *testing.T) {
	t.Parallel()
	for _, err := range []error{kgo.ErrClientClosed, kerr.TopicAuthorizationFailed, &kgo.ErrDecompressTooLarge{}} {
		require.True(t, isFinal(&kgo.ErrGroupSession{Err: fmt.Errorf("x: %w", err)}), err)
	}
	for _, err := range []error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.UnknownTopicOrPartition, &kgo.ErrDataLoss{}} {
		require.False(t, isFinal(&kgo.ErrGroupSession{Err: err}), err)
	}
}
