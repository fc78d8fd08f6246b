package httpidem_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// TestAllocations keeps what the package promises about a request with a JSON body of 300 bytes.
func TestAllocations(t *testing.T) {
	x := newBenchExchange(t.Context())
	keys := benchKeys(2000)
	i := 0
	count := func(h http.Handler, next int) float64 {
		return testing.AllocsPerRun(500, func() {
			x.serve(h, keys[i])
			i += next
		})
	}
	h := guard(t, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})(benchHandler)
	bare := count(benchHandler, 1)
	fresh := count(h, 1)
	require.LessOrEqual(t, fresh-bare, 12.0, "a fresh request, beyond what the handler allocates itself")
	i--
	require.LessOrEqual(t, count(h, 0), 8.0, "a replay")
	require.Equal(t, "true", x.w.header.Get("Idempotency-Replayed"))
}
