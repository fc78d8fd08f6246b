package pgstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// What was acknowledged survives the server, whichever way that ends: claims go on, responses are replayed, tokens
// grow, and those who wait are answered by the server that comes back.
func TestServerEndsBetweenBeginAndComplete(t *testing.T) {
	for name, end := range map[string]func(*testserver.Postgres) error{
		"by a restart":            (*testserver.Postgres).Stop,
		"by kill -9 and recovery": (*testserver.Postgres).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			server, err := testserver.StartPostgres(testserver.PostgresConfig{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, server.Close()) })
			pool := newPool(t, server.URL())
			require.NoError(t, pgstore.Migrate(t.Context(), pool, ""))
			store := newStore(t, pool, pgstore.Config{Schema: pgstore.DefaultSchema})
			running, done, waited := request(), request(), request()
			c, w := claim(t, store, running), claim(t, store, waited)
			require.NoError(t, store.Complete(t.Context(), claim(t, store, done), text("done")))
			waited.Wait = true
			eventually(t, store.Listening, "listening")

			require.NoError(t, end(server))
			_, err = store.Begin(t.Context(), request())
			require.Error(t, err, "a store that cannot be reached says so")
			require.NoError(t, server.Start())

			answers := beginning(t.Context(), store, waited)
			begin(t, store, running, idem.InProgress)
			replays(t, store, done, "done")
			require.NoError(t, store.Extend(t.Context(), c, time.Hour))
			require.NoError(t, store.Complete(t.Context(), c, text("late")))
			replays(t, store, running, "late")
			require.Greater(t, claim(t, store, request()).Token, w.Token)
			require.NoError(t, store.Complete(t.Context(), w, text("waited for")))
			require.Equal(t, "waited for", string(next(t, answers, idem.Replay).Response.Body))
			eventually(t, store.Listening, "listening anew")
		})
	}
}
