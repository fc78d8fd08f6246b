package pgstore_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// A yard is a schema of its own to clean.
type yard struct {
	testing.TB
	pool  *pgxpool.Pool
	store *pgstore.Store
	table string
}

func newYard(tb testing.TB) *yard {
	tb.Helper()
	pool := newPool(tb, databaseURL)
	name := newSchema(tb, pool, "yard ")
	require.NoError(tb, pgstore.Migrate(tb.Context(), pool, name))
	return &yard{
		TB: tb, pool: pool, store: newStore(tb, pool, pgstore.Config{Schema: name, PollOnly: true}),
		table: pgx.Identifier{name, "records"}.Sanitize(),
	}
}

// exec runs a statement in which %s is the table.
func (y *yard) exec(sql string) {
	y.Helper()
	_, err := y.pool.Exec(y.Context(), fmt.Sprintf(sql, y.table))
	require.NoError(y, err)
}

func (y *yard) rows(where string) (n int) {
	y.Helper()
	require.NoError(y, y.pool.QueryRow(y.Context(), fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", y.table, where)).Scan(&n))
	return n
}

func (y *yard) clean(want int) {
	y.Helper()
	n, err := y.store.Clean(y.Context())
	require.NoError(y, err)
	require.EqualValues(y, want, n, "rows deleted")
}

// fill makes so many rows that expired two days ago, as Begin and Complete would have.
func (y *yard) fill(n int) {
	y.Helper()
	y.exec(fmt.Sprintf(fillSQL, n))
}

const fillSQL = `INSERT INTO %%s (scope, key, token, nonce, state, fingerprint, body, created_at, lease_until, completed_at, expires_at, bucket)
	SELECT 'old', md5(i::text), i, 0, 'completed', decode(md5(''), 'hex'), decode(repeat('00', 200), 'hex'), at, at, at, at,
		ceil((date_part('epoch', at) + 60) / 3600)
	FROM generate_series(1, %d) AS i, LATERAL (SELECT now() - interval '2 days' + i * interval '1 ms' AS at) AS made`

// A Begin that waits for a batch shall not do so for long, however slow the server is.
func TestBatchesTakeAsManyRowsAsTheyManage(t *testing.T) {
	const slow, fast, right = 21 * time.Millisecond, 4 * time.Millisecond, 10 * time.Millisecond
	for _, c := range []struct {
		batch int
		took  time.Duration
		want  int
	}{
		{100, fast, 200}, {800, fast, 1000}, {1000, fast, 1000},
		{1000, slow, 500}, {40, slow, 25}, {25, time.Minute, 25},
		{400, right, 400},
	} {
		require.Equal(t, c.want, pgstore.NextBatch(c.batch, c.took), "after %d rows in %v", c.batch, c.took)
	}
}

func TestClean(t *testing.T) {
	t.Run("deletes what has expired, in batches", func(t *testing.T) {
		y := newYard(t)
		y.fill(2500)
		live := request()
		c := claim(t, y.store, live)
		y.clean(2500)
		require.Equal(t, 1, y.rows("true"))
		require.NoError(t, y.store.Complete(t.Context(), c, text("done")))
		y.clean(0)
		replays(t, y.store, live, "done")
	})
	t.Run("spares what lives for longer than was expected, and finds it later", func(t *testing.T) {
		y := newYard(t)
		req := request()
		require.NoError(t, y.store.Complete(t.Context(), claim(t, y.store, req), idem.Response{Body: []byte("done"), TTL: 300 * time.Hour}))
		y.exec("UPDATE %s SET bucket = 1")
		y.clean(0)
		replays(t, y.store, req, "done")
		require.Equal(t, 1, y.rows("abs(bucket - date_part('epoch', now()) / 3600 - 300) < 2"))
		y.exec("UPDATE %s SET expires_at = now() - interval '1 hour', bucket = bucket - 302")
		y.clean(1)
	})
	t.Run("spares what has expired in this minute", func(t *testing.T) {
		// A Begin may be under way that has drawn an older token than the row has.
		y := newYard(t)
		require.NoError(t, y.store.Abandon(t.Context(), claim(t, y.store, request())))
		y.exec("UPDATE %s SET bucket = 1")
		y.clean(0)
		require.Equal(t, 1, y.rows("true"))
		y.exec("UPDATE %s SET bucket = 1, expires_at = now() - interval '61 s'")
		y.clean(1)
	})
	t.Run("leaves alone what others have locked", func(t *testing.T) {
		y := newYard(t)
		y.fill(10)
		tx, err := y.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT FROM "+y.table+" LIMIT 3 FOR UPDATE")
		require.NoError(t, err)
		y.clean(7)
		require.NoError(t, tx.Rollback(t.Context()))
		y.clean(3)
	})
	t.Run("is done by a cleaner that is started and stopped", func(t *testing.T) {
		y := newYard(t)
		stop := y.store.StartCleaner(time.Millisecond)
		for range 3 {
			y.fill(5)
			eventually(t, func() bool { return y.rows("true") == 0 }, "a clean table")
		}
		stop()
		stop()
		y.fill(5)
		require.Equal(t, 5, y.rows("true"))
		require.Panics(t, func() { y.store.StartCleaner(0) })
	})
}

// The table is what an operator looks at first.
func TestOverview(t *testing.T) {
	y := newYard(t)
	hold := newStore(t, y.pool, pgstore.Config{Schema: strings.Trim(strings.Split(y.table, ".")[0], `"`), OnLeaseExpiry: idem.Hold, PollOnly: true})
	named := func(key string) idem.Request { return idem.Request{Scope: "shop-1", Key: key} }
	claim(t, y.store, named("processing"))
	require.NoError(t, y.store.Complete(t.Context(), claim(t, y.store, named("completed")), text("done")))
	require.NoError(t, y.store.Complete(t.Context(), claim(t, y.store, named("failed")), idem.Response{Failed: true}))
	lapsed := named("unknown")
	lapsed.Lease = time.Microsecond
	claim(t, hold, lapsed)
	require.NoError(t, y.store.Abandon(t.Context(), claim(t, y.store, named("free"))))
	lapsed.Key = "lapsed"
	claim(t, y.store, lapsed)
	claim(t, y.store, named("bytes\x00\xff"))

	rows, err := y.pool.Query(t.Context(), strings.ReplaceAll(
		"SELECT key || ' is ' || state FROM "+y.table+" WHERE scope = 'shop-1' AND created_at <= now() ORDER BY key", "records", "overview"))
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{
		`bytes\x00\xff is processing`, "completed is completed", "failed is failed", "free is free", "lapsed is free",
		"processing is processing", "unknown is unknown",
	}, got)
}

// A million rows have expired, four cleaners delete them, and callers go on meanwhile, half of them with keys that are
// about to be deleted.
func TestHeavyCleanUnderLoad(t *testing.T) {
	// Its log tells who waited for whom.
	server, err := testserver.StartPostgres(testserver.PostgresConfig{Settings: []string{
		"log_lock_waits=on", "deadlock_timeout=50ms", "log_error_verbosity=terse", "log_min_error_statement=panic",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	pool := newPool(t, server.URL(), maxConns(16))
	require.NoError(t, pgstore.Migrate(t.Context(), pool, "idem"))
	y := &yard{TB: t, pool: pool, store: newStore(t, pool, pgstore.Config{Schema: "idem", PollOnly: true}), table: "idem.records"}
	const n = 1_000_000
	y.fill(n)
	y.exec("ANALYZE %s")
	plan := y.plan()
	require.Contains(t, plan, "Index Scan using records_bucket on records")
	require.NotContains(t, plan, "Seq Scan")

	ctx, cancel := context.WithCancel(t.Context())
	var load, cleaners errgroup.Group
	var cycles, deleted atomic.Int64
	for range 4 {
		load.Go(func() error {
			for ctx.Err() == nil {
				if err := y.cycle(n, cycles.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	start := time.Now()
	for range 4 {
		cleaners.Go(func() error {
			n, err := y.store.Clean(t.Context())
			deleted.Add(n)
			return err
		})
	}
	require.NoError(t, cleaners.Wait())
	t.Logf("%d rows deleted in %v beside %d cycles", deleted.Load(), time.Since(start), cycles.Load())
	cancel()
	require.NoError(t, load.Wait())
	require.EqualValues(t, cycles.Load(), y.rows("true"), "what is live is all there, and nothing else")
	// Inserts wait for each other to make the file longer, which has nothing to do with cleaning.
	require.NotRegexp(t, `still waiting for \w+ on (transaction|tuple|relation)`, server.Output())
}

// cycle begins and completes a key that is new, or one of the n old ones.
func (y *yard) cycle(n int, i int64) error {
	req := request()
	if i%2 == 0 {
		req.Scope, req.Key = "old", fmt.Sprintf("%x", md5.Sum(fmt.Append(nil, int64(n)-i/2)))
	}
	out, err := y.store.Begin(y.Context(), req)
	if err != nil || out.State != idem.Fresh {
		return fmt.Errorf("%s is %v: %w", req.Key, out.State, err)
	}
	return y.store.Complete(y.Context(), out.Claim, text("live"))
}

// plan is how a batch of Clean is carried out, now that the table is large.
func (y *yard) plan() string {
	y.Helper()
	rows, err := y.pool.Query(y.Context(), "EXPLAIN "+y.store.CleanSQL(), int32(1000))
	require.NoError(y, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(y, err)
	return strings.Join(lines, "\n")
}
