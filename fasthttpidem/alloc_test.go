//go:build !race

package fasthttpidem_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/fasthttpidem"
)

// TestHeavyAllocations keeps what the package promises about a request with a JSON body of 300 bytes. It is not for the race
// detector, with which every sync.Pool forgets at random, fasthttp's as well.
func TestHeavyAllocations(t *testing.T) {
	count := func(c *caller, step uint64) float64 {
		return testing.AllocsPerRun(500, func() {
			c.sent += step
			c.pay(t, c.sent)
		})
	}
	bare := count(newCaller(payHandler), 1)
	c := newCaller(guard(t, fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")})(payHandler))
	c.ctx.Request.Header.Set("Authorization", "Bearer 0123456789abcdef")
	fresh := count(c, 1)
	replayed := count(c, 0)
	require.Equal(t, "true", string(c.ctx.Response.Header.Peek("Idempotency-Replayed")))
	require.LessOrEqual(t, fresh-bare, 7.0, "a fresh request, beyond what the handler allocates itself")
	require.LessOrEqual(t, replayed-bare, 4.0, "a replay")
}
