package httpidem_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A handler that records its response itself, as in the transaction of its effect, has not lost its claim, although that
// can't be extended any more.
func TestHandlerCompletesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t, idem.Config{Lease: 9 * time.Second})
		h := guardWith(t, engine, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op, _ := httpidem.FromContext(r.Context())
			time.Sleep(10 * time.Second)
			resp := httpidem.NewResponse(http.StatusCreated, http.Header{}, []byte("paid"))
			assert.NoError(t, engine.Complete(r.Context(), op.Claim(), resp))
			time.Sleep(time.Minute)
			assert.NoError(t, context.Cause(r.Context()))
			w.WriteHeader(resp.Status)
			_, _ = w.Write(resp.Body)
		}))
		for range 2 {
			w := post(t, h, "k", "")
			require.Equal(t, http.StatusCreated, w.Code)
			require.Equal(t, "paid", w.Body.String())
		}
	})
}
