package httpidem_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

func TestOperation(t *testing.T) {
	t.Run("NoStore frees the key", func(t *testing.T) {
		runs := 0
		h := guard(t, httpidem.Config{})(counted(&runs, func(_ http.ResponseWriter, r *http.Request) {
			op, ok := httpidem.FromContext(r.Context())
			assert.True(t, ok)
			op.NoStore()
		}))
		post(t, h, "k", "")
		post(t, h, "k", "")
		require.Equal(t, 2, runs)
	})
	t.Run("SetTTL bounds the replays", func(t *testing.T) {
		for set, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 0: 24 * time.Hour, -1: 24 * time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				store := newFaultyStore(t, idem.Config{})
				runs := 0
				h := guardWith(t, store, httpidem.Config{})(counted(&runs, func(_ http.ResponseWriter, r *http.Request) {
					op, _ := httpidem.FromContext(r.Context())
					op.SetTTL(set)
				}))
				post(t, h, "k", "")
				time.Sleep(want - time.Nanosecond)
				requireReplayed(t, post(t, h, "k", ""), 200, "")
				time.Sleep(time.Nanosecond)
				post(t, h, "k", "")
				require.Equal(t, 2, runs)
			})
		}
	})
	t.Run("Claim has the store's token", func(t *testing.T) {
		var tokens []uint64
		h := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op, _ := httpidem.FromContext(r.Context())
			tokens = append(tokens, op.Claim().Token)
			w.WriteHeader(http.StatusInternalServerError)
		}))
		post(t, h, "k", "")
		post(t, h, "k", "")
		require.Len(t, tokens, 2)
		require.Greater(t, tokens[1], tokens[0])
	})
	t.Run("a handler may complete its claim itself", func(t *testing.T) {
		engine := newEngine(t, idem.Config{})
		h := guardWith(t, engine, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op, _ := httpidem.FromContext(r.Context())
			w.Header().Set("Location", "/payments/1")
			resp := httpidem.NewResponse(201, w.Header(), []byte("in the transaction"))
			assert.NoError(t, engine.Complete(r.Context(), op.Claim(), resp))
			w.WriteHeader(resp.Status)
			_, _ = w.Write(resp.Body)
		}))
		require.Equal(t, "in the transaction", post(t, h, "k", "").Body.String())
		again := post(t, h, "k", "")
		requireReplayed(t, again, 201, "in the transaction")
		require.Equal(t, "/payments/1", again.Header().Get("Location"))
		require.Equal(t, "text/plain; charset=utf-8", again.Header().Get("Content-Type"))
	})
	t.Run("there is none without protection", func(t *testing.T) {
		_, ok := httpidem.FromContext(t.Context())
		require.False(t, ok)
	})
}

// A handler may know better than any status that nobody knows what has happened.
func TestHold(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{})(counted(&runs, func(w http.ResponseWriter, r *http.Request) {
		op, ok := httpidem.FromContext(r.Context())
		assert.True(t, ok)
		op.NoStore()
		op.Hold()
		w.WriteHeader(http.StatusAccepted)
	}))
	require.Equal(t, 202, post(t, h, "k", "").Code)
	requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
	require.Equal(t, 1, runs)
}
