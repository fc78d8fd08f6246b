package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

const (
	redisStore    = "redis"
	postgresStore = "postgres"

	scope   = "shop"
	keepFor = 10 * time.Minute // records, should nobody clean them up
)

// A setup is what all processes of the fleet have in common.
type setup struct {
	Store  string // redis or postgres
	URL    string // of the server
	Space  string // prefix of keys, or database schema: one for each run
	Policy idem.LeasePolicy
	Lease  time.Duration
}

// A charge is money that moved: once too often, if an order has two.
type charge struct {
	Order, Server string
	Token         uint64
}

// books are the records of a store and, with Postgres, the charges themselves. Each process opens its own.
type books struct {
	store interface {
		idem.Store
		idem.Inspector
	}
	close func() error

	postgres *pgstore.Store // nil with Redis
	pool     *pgxpool.Pool
	charges  string // the table's name
}

func openBooks(ctx context.Context, s setup) (*books, error) {
	if s.Store == postgresStore {
		return openPostgres(ctx, s)
	}
	options, err := redis.ParseURL(s.URL)
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	client := redis.NewClient(options)
	store, err := redisstore.New(client, redisstore.Config{
		Prefix: s.Space, TTL: keepFor, Lease: s.Lease, OnLeaseExpiry: s.Policy,
	})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &books{store: store, close: func() error { return errors.Join(store.Close(), client.Close()) }}, nil
}

func openPostgres(ctx context.Context, s setup) (*books, error) {
	cfg, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	cfg.MaxConns = 16 // by default there are as many as processors, and each run holds one for its transaction
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{
		Schema: s.Space, TTL: keepFor, Lease: s.Lease, OnLeaseExpiry: s.Policy,
	})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &books{
		store: store, postgres: store, pool: pool, charges: pgx.Identifier{s.Space, "charges"}.Sanitize(),
		close: func() error {
			defer pool.Close()
			return store.Close()
		},
	}, nil
}

// prepare makes what is needed in a database, and returns what removes it. Redis only needs to be there: its keys
// expire. It is asked now, because the servers would try for a long time to reach it.
func (b *books) prepare(ctx context.Context, s setup) (remove func() error, err error) {
	if b.postgres == nil {
		return func() error { return nil }, b.knock(ctx)
	}
	remove = func() error { return b.dropSchema(context.WithoutCancel(ctx), s.Space) } // after an interrupt, too
	if err = pgstore.Migrate(ctx, b.pool, s.Space); err != nil {
		return nil, errors.Join(err, remove())
	}
	// No unique index: it is the store that must keep an order from being charged twice.
	_, err = b.pool.Exec(ctx, "CREATE TABLE "+b.charges+" (order_id text, server text, token bigint)")
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}

// knock finds out whether Redis answers. The client by itself tries for a minute to reach a host that is silent.
func (b *books) knock(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no answer within ten seconds"))
	defer cancel()
	if _, _, err := b.store.Lookup(ctx, scope, "is anybody there?"); err != nil {
		return fmt.Errorf("REDIS_URL: %w", err)
	}
	return nil
}

func (b *books) dropSchema(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := b.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
	return err
}

// charged returns the charges in the database.
func (b *books) charged(ctx context.Context) ([]charge, error) {
	rows, err := b.pool.Query(ctx, "SELECT order_id, server, token FROM "+b.charges)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[charge])
}

// payOnce charges an order in one transaction with the record that it was. Tell is called before it commits.
func (b *books) payOnce(ctx context.Context, c idem.Claim, server string, resp idem.Response, tell func() error) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+b.charges+" VALUES ($1, $2, $3)", c.Key, server, int64(c.Token))
		if err != nil {
			return err
		}
		if err := tell(); err != nil {
			return err
		}
		if err := b.postgres.CompleteTx(ctx, tx, c, resp); err != nil {
			return fmt.Errorf("charge undone: %w", err)
		}
		return nil
	})
}
