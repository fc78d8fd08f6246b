package pgstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/crowd"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

var (
	// databaseURL is the database of plain tests: that of DATABASE_URL, or a private server's.
	databaseURL string

	// schema is what tests on that database share: one that is theirs, and dropped at the end.
	schema = "idem test " + strings.ToLower(rand.Text()[:10])
)

func TestMain(m *testing.M) {
	crowd.Main(openMember)
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	url, end, err := testserver.PostgresURL()
	if err != nil {
		return 1, err
	}
	defer func() { err = joined(err, end()) }()
	databaseURL = url
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return 1, err
	}
	defer pool.Close()
	if err = pgstore.Migrate(ctx, pool, schema); err != nil {
		return 1, err
	}
	defer func() {
		_, dropErr := pool.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		err = joined(err, dropErr)
	}()
	return m.Run(), nil
}

func joined(err, other error) error {
	if err == nil {
		return other
	}
	return err
}

// A poolOption changes how a pool connects.
type poolOption func(*pgxpool.Config)

func isolation(level string) poolOption {
	return func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
	}
}

func maxConns(n int32) poolOption { return func(c *pgxpool.Config) { c.MaxConns = n } }

func execMode(mode pgx.QueryExecMode) poolOption {
	return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }
}

// newPool returns a pool that is closed at the end of the test.
func newPool(tb testing.TB, url string, options ...poolOption) *pgxpool.Pool {
	tb.Helper()
	pool, err := openPool(url, options...)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

func openPool(url string, options ...poolOption) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 8
	for _, option := range options {
		option(cfg)
	}
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// newStore returns a store on the tests' schema that is closed at the end of the test.
func newStore(tb testing.TB, pool *pgxpool.Pool, cfg pgstore.Config) *pgstore.Store {
	tb.Helper()
	if cfg.Schema == "" {
		cfg.Schema = schema
	}
	store, err := pgstore.New(pool, cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, store.Close()) })
	return store
}

// eventually wants ok to become true.
func eventually(tb testing.TB, ok func() bool, what string) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		require.True(tb, time.Now().Before(end), "%s: not yet", what)
	}
}

// claim begins req, which must be Fresh.
func claim(tb testing.TB, store *pgstore.Store, req idem.Request) idem.Claim {
	tb.Helper()
	return begin(tb, store, req, idem.Fresh).Claim
}

// begin begins req and wants the state.
func begin(tb testing.TB, store *pgstore.Store, req idem.Request, want idem.State) idem.Outcome {
	tb.Helper()
	out, err := store.Begin(tb.Context(), req)
	require.NoError(tb, err)
	require.Equal(tb, want.String(), out.State.String())
	return out
}

// replays wants body replayed.
func replays(tb testing.TB, store *pgstore.Store, req idem.Request, body string) {
	tb.Helper()
	require.Equal(tb, body, string(begin(tb, store, req, idem.Replay).Response.Body))
}

func text(body string) idem.Response { return idem.Response{Status: 200, Body: []byte(body)} }

// request asks for a key that no other test asks for.
func request() idem.Request {
	return idem.Request{Scope: "test", Key: rand.Text(), Fingerprint: idem.FingerprintOf([]byte("ours")), Lease: time.Hour}
}

// An answer is what a Begin returned that was made in the background.
type answer struct {
	out idem.Outcome
	err error
}

// beginning calls Begin in the background.
func beginning(ctx context.Context, store *pgstore.Store, req idem.Request) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		out, err := store.Begin(ctx, req)
		answers <- answer{out, err}
	}()
	return answers
}

// next returns the answer that comes, with the state.
func next(tb testing.TB, answers <-chan answer, want idem.State) idem.Outcome {
	tb.Helper()
	select {
	case a := <-answers:
		require.NoError(tb, a.err)
		require.Equal(tb, want.String(), a.out.State.String())
		return a.out
	case <-time.After(20 * time.Second):
		require.FailNow(tb, "Begin does not return")
		return idem.Outcome{}
	}
}

// blocked waits until a statement with the name in it waits for another transaction.
func blocked(tb testing.TB, pool *pgxpool.Pool, name string) {
	tb.Helper()
	eventually(tb, func() bool {
		var n int
		err := pool.QueryRow(tb.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE '%' || $1 || '%'`, name).Scan(&n)
		require.NoError(tb, err)
		return n > 0
	}, "a blocked statement")
}
