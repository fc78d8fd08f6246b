package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-5bb5eb37/idem"
	"github.com/stretchr/testify/require"
)

// small is a storm that is over in a moment.
var small = &storm{orders: 12, clients: 5, seed: 7}

// stormOn sends the small storm to the handler that shop returns and gives back the table.
func stormOn(ctx context.Context, t *testing.T, shop func(*idem.Engine, *ledger) http.Handler) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := withEngine(idem.Config{}, func(e *idem.Engine) error {
		books := newLedger()
		return small.run(ctx, &stdout, &stderr, e, books, shop(e, books))
	})
	require.Empty(t, stderr.String(), "a progress line without a terminal")
	return stdout.String(), err
}

// chargeThen returns a shop that charges an order as often as charges says for its nth request, and
// answers what answer says.
func chargeThen(charges, answer func(n int64) int64) func(*idem.Engine, *ledger) http.Handler {
	return func(_ *idem.Engine, books *ledger) http.Handler {
		var requests atomic.Int64
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			order, _ := io.ReadAll(r.Body)
			n := requests.Add(1)
			for range charges(n) {
				books.charge(charge{Order: string(order)})
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"id":%d}`, answer(n))
		})
	}
}

func always(n int64) func(int64) int64 { return func(int64) int64 { return n } }

// TestStorm sends the storm to servers that are broken in one way each: a storm that nothing can fail would
// prove nothing about the engine.
func TestStorm(t *testing.T) {
	t.Run("the engine charges every order once", func(t *testing.T) {
		table, err := stormOn(t.Context(), t, func(e *idem.Engine, books *ledger) http.Handler {
			return newShop(e, books, small.seed)
		})
		require.NoError(t, err, table)
		for _, line := range []string{"requests", "charges made +12", "replays", "waits", "in-progress answers", "p50 / p99"} {
			require.Regexp(t, line, table)
		}
	})

	t.Run("a server that charges every request fails", func(t *testing.T) {
		_, err := stormOn(t.Context(), t, chargeThen(always(1), always(1)))
		require.ErrorContains(t, err, "charged more than once: 12,")
		require.Equal(t, exitFailed, exitCode(err, io.Discard))
	})

	t.Run("a server that answers without charging fails", func(t *testing.T) {
		_, err := stormOn(t.Context(), t, chargeThen(always(0), always(1)))
		require.ErrorContains(t, err, "not charged: 12,")
	})

	t.Run("a server that answers clients differently fails", func(t *testing.T) {
		_, err := stormOn(t.Context(), t, chargeThen(always(0), func(n int64) int64 { return n }))
		require.ErrorContains(t, err, "different answers: 12")
	})

	t.Run("an answer that is not part of the game fails", func(t *testing.T) {
		_, err := stormOn(t.Context(), t, func(*idem.Engine, *ledger) http.Handler { return http.NotFoundHandler() })
		require.ErrorContains(t, err, "unexpected answer 404")
	})

	t.Run("an interrupt ends it and is no fault of the server", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		table, err := stormOn(ctx, t, func(e *idem.Engine, books *ledger) http.Handler {
			shop := newShop(e, books, small.seed)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				interrupt()
				shop.ServeHTTP(w, r)
			})
		})
		require.Equal(t, exitInterrupted, exitCode(err, io.Discard), "%v", err)
		require.Contains(t, table, "charges made", "what was done until then is shown")
	})

	t.Run("double charges outweigh an interrupt", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		charge := func(n int64) int64 {
			if n > 30 {
				interrupt()
			}
			return 2
		}
		_, err := stormOn(ctx, t, chargeThen(charge, always(1)))
		require.Equal(t, exitFailed, exitCode(err, io.Discard), "%v", err)
	})
}

// TestShopRefusals checks the answers of the embedding that the storm does not provoke on purpose.
func TestShopRefusals(t *testing.T) {
	err := withEngine(idem.Config{}, func(e *idem.Engine) error {
		server, err := listen("127.0.0.1:0", newShop(e, newLedger(), 1))
		require.NoError(t, err)
		held := idem.Request{Scope: "storm", Key: "held", Fingerprint: idem.FingerprintOf([]byte("POST"), []byte("/"), []byte("order"))}
		_, err = e.Begin(t.Context(), held)
		require.NoError(t, err)

		busy := send(t, http.MethodPost, server.url, "held", "order")
		require.Equal(t, http.StatusConflict, busy.status)
		require.Equal(t, "30", busy.header.Get("Retry-After"))
		for _, c := range []struct {
			status     int
			key, order string
		}{
			{http.StatusUnprocessableEntity, "held", "other"},
			{http.StatusBadRequest, "", "order"},
			{http.StatusBadRequest, "large", strings.Repeat("x", maxOrder+1)},
		} {
			require.Equal(t, c.status, send(t, http.MethodPost, server.url, c.key, c.order).status, c.key)
		}
		return server.shut()
	})
	require.NoError(t, err)
}
