package waitroom

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFallbackOfALeaseWithoutAnEnd(t *testing.T) {
	require.Greater(t, fallback(0, math.MaxInt64), 900*time.Millisecond)
}
