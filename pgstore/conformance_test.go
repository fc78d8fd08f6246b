package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// maker makes stores on one pool.
func maker(pool *pgxpool.Pool, cfg pgstore.Config) idemtest.Maker {
	return idemtest.Maker{
		New: func(tb testing.TB, want idemtest.Config) idem.Store {
			cfg := cfg
			cfg.Lease, cfg.TTL, cfg.OnLeaseExpiry = want.Lease, want.TTL, want.OnLeaseExpiry
			cfg.MaxKeyBytes, cfg.MaxResponseBytes = want.MaxKeyBytes, want.MaxResponseBytes
			cfg.MaxWaiters, cfg.MaxWaitersPerKey = want.MaxWaiters, want.MaxWaitersPerKey
			return newStore(tb, pool, cfg)
		},
		Unsupported: idemtest.MaxRecords,
		Resolution:  2 * time.Millisecond,
		Rounds:      3,
	}
}

func TestConformance(t *testing.T) {
	idemtest.Run(t, maker(newPool(t, databaseURL), pgstore.Config{}))
}

func TestHeavyConformanceWithoutNotifications(t *testing.T) {
	conform(t, pgstore.Config{PollOnly: true})
}

func TestHeavyConformanceUnderRepeatableRead(t *testing.T) {
	conform(t, pgstore.Config{}, isolation("repeatable read"))
}

func TestHeavyConformanceUnderSerializable(t *testing.T) {
	conform(t, pgstore.Config{}, isolation("serializable"))
}

// conform runs the suite in a schema of its own, beside others: most of the time it waits.
func conform(t *testing.T, cfg pgstore.Config, options ...poolOption) {
	t.Helper()
	t.Parallel()
	pool := newPool(t, databaseURL, options...)
	cfg.Schema = t.Name()
	require.NoError(t, pgstore.Migrate(t.Context(), pool, cfg.Schema))
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+pgx.Identifier{cfg.Schema}.Sanitize()+" CASCADE")
		require.NoError(t, err)
	})
	idemtest.Run(t, maker(pool, cfg))
}

// pgbouncer in transaction mode gives every transaction to another connection. So nothing may depend on the session:
// prepared statements, LISTEN, advisory locks.
func TestHeavyConformanceThroughPgBouncer(t *testing.T) {
	t.Parallel()
	server, err := testserver.StartPostgres(testserver.PostgresConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	bouncer, err := testserver.StartPgBouncer(server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bouncer.Close()) })
	for name, mode := range map[string]pgx.QueryExecMode{
		"unnamed statements": pgx.QueryExecModeExec,
		"simple protocol":    pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, bouncer.URL(), execMode(mode))
			require.NoError(t, pgstore.Migrate(t.Context(), pool, name))
			idemtest.Run(t, maker(pool, pgstore.Config{Schema: name, PollOnly: true}))
		})
	}
}
