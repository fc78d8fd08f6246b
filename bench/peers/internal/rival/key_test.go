package rival_test

import (
	"strings"
	"testing"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"github.com/stretchr/testify/require"
)

func TestKeysDiffer(t *testing.T) {
	var k rival.Key
	seen := map[string]bool{}
	for i := range uint64(10_000) {
		key := k.At(i)
		seen[strings.Clone(key)] = true
	}
	require.Len(t, seen, 10_000)
	require.Regexp(t, `^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`, k.At(1<<63))
	require.Equal(t, k.At(7), new(rival.Key).At(7))
	require.Equal(t, "0123456789ab", k.At(0x0123456789ab)[24:])
}

// BenchmarkKey is what making a key adds to everything that is measured.
func BenchmarkKey(b *testing.B) {
	var k rival.Key
	i, sum := uint64(0), 0
	for b.Loop() {
		i++
		sum += len(k.At(i))
	}
	require.Equal(b, int(i)*rival.KeyBytes, sum)
}
