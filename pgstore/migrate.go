package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A migration is one step from an empty schema to the current one.
type migration struct {
	version int
	name    string // of its file
}

// migrations returns all steps in their order, which is that of the files' names.
func migrations() []migration {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is right
	}
	all := make([]migration, len(names))
	for i, name := range names {
		digits, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.Atoi(digits)
		if err != nil || version != i+1 {
			panic(fmt.Sprintf("pgstore: migration %s does not have the number %d", name, i+1))
		}
		all[i] = migration{version, name}
	}
	return all
}

// Schema returns the SQL that makes the schema of that name, which may be empty for "idem": all that [Migrate] would
// run on a database without it. It is for those who have a tool of their own for migrations.
func Schema(schema string) (string, error) {
	schema, err := schemaName(schema)
	if err != nil {
		return "", err
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n\n%s;\n", quoted, versionTable(quoted))
	for _, m := range migrations() {
		fmt.Fprintf(&b, "\n%s\nINSERT INTO %s.migrations (version) VALUES (%d);\n", mustRender(m.name, schema), quoted, m.version)
	}
	return b.String(), nil
}

func versionTable(quoted string) string {
	return "CREATE TABLE IF NOT EXISTS " + quoted + ".migrations (\n" +
		"\tversion    int         PRIMARY KEY,\n" +
		"\tapplied_at timestamptz NOT NULL DEFAULT now()\n)"
}

// Migrate brings the schema of that name, which may be empty for "idem", to what this version of the package needs.
// It does nothing when that is so already. Any number of processes may call it at the same time, when they start for
// instance: one does the work, in one transaction, and the others wait for it. The role needs the right to create
// a schema, or tables in the one that is there.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if ctx == nil || pool == nil {
		return errors.New("pgstore: Migrate with a nil context or pool")
	}
	schema, err := schemaName(schema)
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return migrate(ctx, tx, schema)
	})
	if err != nil {
		return fmt.Errorf("pgstore: migrate schema %q: %w", schema, err)
	}
	return nil
}

func migrate(ctx context.Context, tx pgx.Tx, schema string) error {
	if encoding := tx.Conn().PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		return fmt.Errorf("the database has the encoding %q, want UTF8, which can hold every key", encoding)
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	// Held until the transaction ends, so that it works through any pooler.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(hashKey("pgstore.Migrate", schema))); err != nil {
		return err
	}
	done, err := applied(ctx, tx, schema)
	if err != nil {
		return err
	}
	for _, m := range migrations() {
		if m.version <= done {
			continue
		}
		if _, err := tx.Exec(ctx, mustRender(m.name, schema)); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO "+quoted+".migrations (version) VALUES ($1)", m.version); err != nil {
			return err
		}
	}
	return nil
}

// applied returns the version that the schema has, having made the schema if need be.
func applied(ctx context.Context, tx pgx.Tx, schema string) (version int, err error) {
	// To ask for what is there with IF NOT EXISTS takes the right to create it. A role that is only to use the schema
	// need not have that.
	var hasSchema, hasTable bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
		EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')`, schema).Scan(&hasSchema, &hasTable)
	if err != nil {
		return 0, err
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	if !hasSchema {
		if _, err = tx.Exec(ctx, "CREATE SCHEMA "+quoted); err != nil {
			return 0, err
		}
	}
	if !hasTable {
		_, err = tx.Exec(ctx, versionTable(quoted))
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM "+quoted+".migrations").Scan(&version)
	return version, err
}
