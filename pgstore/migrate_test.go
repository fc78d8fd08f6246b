package pgstore_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// newSchema returns the name of a schema that is dropped at the end of the test, if it is there by then.
func newSchema(tb testing.TB, pool *pgxpool.Pool, prefix string) string {
	tb.Helper()
	name := prefix + strings.ToLower(rand.Text()[:8])
	tb.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
		require.NoError(tb, err)
	})
	return name
}

// works wants that a store on the schema does.
func works(tb testing.TB, pool *pgxpool.Pool, schema string) {
	tb.Helper()
	store := newStore(tb, pool, pgstore.Config{Schema: schema, PollOnly: true})
	out, err := store.Begin(tb.Context(), idem.Request{Key: "k"})
	require.NoError(tb, err)
	require.Equal(tb, idem.Fresh, out.State)
	require.NoError(tb, store.Complete(tb.Context(), out.Claim, idem.Response{}))
}

func TestMigrateByManyAtOnce(t *testing.T) {
	pool := newPool(t, databaseURL)
	name := newSchema(t, pool, "many ")
	var all errgroup.Group
	for range 8 {
		all.Go(func() error { return pgstore.Migrate(t.Context(), pool, name) })
	}
	require.NoError(t, all.Wait())
	works(t, pool, name)
	require.NoError(t, pgstore.Migrate(t.Context(), pool, name), "again")
	var versions int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+pgx.Identifier{name}.Sanitize()+".migrations").Scan(&versions))
	require.Equal(t, 1, versions)
}

func TestSchemaNamesAreQuoted(t *testing.T) {
	pool := newPool(t, databaseURL)
	for _, prefix := range []string{
		`Quo"te'd`, "über; DROP TABLE x --", "{{schema}}", "$1", "$", "a$b$", "$a$", "tab\t\v\f\u2028", "/* ", `back\slash`, "public.x",
	} {
		name := newSchema(t, pool, prefix)
		require.NoError(t, pgstore.Migrate(t.Context(), pool, name), name)
		works(t, pool, name)
	}
}

func TestSchemaIsWhatMigrateMakes(t *testing.T) {
	pool := newPool(t, databaseURL)
	byHand, migrated := newSchema(t, pool, "hand "), newSchema(t, pool, "migrated ")
	text, err := pgstore.Schema(byHand)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), text)
	require.NoError(t, err)
	require.NoError(t, pgstore.Migrate(t.Context(), pool, byHand), "nothing is left to do")
	require.NoError(t, pgstore.Migrate(t.Context(), pool, migrated))
	works(t, pool, byHand)
	columns := func(schema string) (all []string) {
		rows, queryErr := pool.Query(t.Context(), `SELECT table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns
			WHERE table_schema = $1 ORDER BY 1`, schema)
		require.NoError(t, queryErr)
		all, queryErr = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, queryErr)
		return all
	}
	require.Equal(t, columns(migrated), columns(byHand))
	require.Contains(t, columns(byHand), "records.key text")

	_, err = pgstore.Schema(strings.Repeat("s", 64))
	require.ErrorContains(t, err, "schema name of 64 bytes")
}

// A role that may not create anything can run a program that migrates when it starts, once that was done.
func TestGrants(t *testing.T) {
	pool := newPool(t, databaseURL)
	name := newSchema(t, pool, "granted ")
	require.NoError(t, pgstore.Migrate(t.Context(), pool, name))
	role := "idem_test_" + strings.ToLower(rand.Text()[:8])
	quoted := pgx.Identifier{name}.Sanitize()
	exec := func(sql string) {
		_, err := pool.Exec(context.Background(), sql)
		require.NoError(t, err, sql)
	}
	exec("CREATE ROLE " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role); exec("DROP ROLE " + role) })
	// These are the README's.
	exec("GRANT USAGE ON SCHEMA " + quoted + " TO " + role)
	exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + quoted + ".records TO " + role)
	exec("GRANT SELECT ON " + quoted + ".migrations, " + quoted + ".overview TO " + role)
	exec("GRANT USAGE ON SEQUENCE " + quoted + ".tokens TO " + role)
	limited := newPool(t, databaseURL, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
	})
	require.NoError(t, pgstore.Migrate(t.Context(), limited, name))
	works(t, limited, name)
	store := newStore(t, limited, pgstore.Config{Schema: name, PollOnly: true})
	_, err := store.Clean(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, pgstore.Migrate(t.Context(), limited, newSchema(t, pool, "other ")), "permission denied")
}

func TestWithoutASchema(t *testing.T) {
	store := newStore(t, newPool(t, databaseURL), pgstore.Config{Schema: "not there"})
	_, err := store.Begin(t.Context(), idem.Request{Key: "k"})
	require.ErrorContains(t, err, "run pgstore.Migrate")
}

func TestMigrateRefusesAnEncoding(t *testing.T) {
	pool := newPool(t, databaseURL)
	name := "idem_latin_" + strings.ToLower(rand.Text()[:8])
	_, err := pool.Exec(t.Context(), "CREATE DATABASE "+name+" ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, dropErr := pool.Exec(context.Background(), "DROP DATABASE "+name)
		require.NoError(t, dropErr)
	})
	other, err := pgxpool.NewWithConfig(t.Context(), func() *pgxpool.Config {
		cfg := pool.Config()
		cfg.ConnConfig.Database = name
		return cfg
	}())
	require.NoError(t, err)
	defer other.Close()
	require.ErrorContains(t, pgstore.Migrate(t.Context(), other, ""), `encoding "LATIN1", want UTF8`)
}
