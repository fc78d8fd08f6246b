package verify_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// servers are those of all tests, each started by the first that needs it and ended after the last.
var servers struct {
	mu              sync.Mutex
	redis, postgres string // URLs
	ends            []func() error
}

// A run is the tests, and then the end of the servers.
type run struct{ m *testing.M }

// Run returns the exit code.
func (r run) Run() int {
	code := r.m.Run()
	if err := endServers(); err != nil {
		println(err.Error())
		return 1
	}
	return code
}

func endServers() (err error) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	for _, end := range servers.ends {
		err = errors.Join(err, end())
	}
	return err
}

// serverOf returns the URL of the server that a plan needs, ready for its store.
func serverOf(t *testing.T, p plan) string {
	t.Helper()
	switch p.Store {
	case "redis", "rueidis", "tiered":
		return redisServer(t)
	case "postgres":
		url := postgresServer(t)
		migrate(t, url, p.Space)
		return url
	default:
		return ""
	}
}

func redisServer(t *testing.T) string {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.redis == "" {
		url, private, err := testserver.RedisURL()
		require.NoError(t, err)
		servers.redis = url
		if private != nil {
			servers.ends = append(servers.ends, private.Close)
		}
	}
	return servers.redis
}

func postgresServer(t *testing.T) string {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.postgres == "" {
		url, end, err := testserver.PostgresURL()
		require.NoError(t, err)
		servers.postgres = url
		servers.ends = append(servers.ends, end)
	}
	return servers.postgres
}

// migrate makes a schema that is dropped at the end of the test.
func migrate(t *testing.T, url, schema string) {
	t.Helper()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgstore.Migrate(ctx, pool, schema))
	t.Cleanup(func() {
		_, err := pool.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		require.NoError(t, err)
	})
}
