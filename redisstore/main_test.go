package redisstore_test

import (
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
	"github.com/seed-5bb5eb37/idem/internal/crowd"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// redisURL is the server of all tests that need nothing but a server.
var redisURL string

func TestMain(m *testing.M) {
	crowd.Main(openMember)
	// Most rows of idemtest sleep.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	url, private, err := testserver.RedisURL()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if private != nil {
		defer func() { _ = private.Close() }()
	}
	redisURL = url
	return m.Run()
}

// connect returns a client of the common server.
func connect(tb testing.TB) *redis.Client {
	tb.Helper()
	opt, err := redis.ParseURL(redisURL)
	require.NoError(tb, err)
	return client(tb, opt)
}

func client(tb testing.TB, opt *redis.Options) *redis.Client {
	tb.Helper()
	c := redis.NewClient(opt)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

// start starts a private server, and returns it with a client.
func start(tb testing.TB, args ...string) (*testserver.Redis, *redis.Client) {
	tb.Helper()
	server, err := testserver.StartRedis(args...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, server.Close()) })
	return server, client(tb, &redis.Options{Addr: server.Addr})
}

// open returns a store. The prefix keeps tests apart on a server that they share.
func open(tb testing.TB, c redis.UniversalClient, cfg redisstore.Config) *redisstore.Store {
	tb.Helper()
	if cfg.Prefix == "" {
		cfg.Prefix = prefix()
	}
	s, err := redisstore.New(c, cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

func prefix() string { return "idemtest-" + rand.Text()[:12] }

// maker makes stores for the rows of idemtest.
func maker(c redis.UniversalClient) idemtest.Maker {
	return idemtest.Maker{
		New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
			tb.Helper()
			return open(tb, c, redisstore.Config{
				Prefix: "idemtest", TTL: cfg.TTL, Lease: cfg.Lease, OnLeaseExpiry: cfg.OnLeaseExpiry,
				MaxKeyBytes: cfg.MaxKeyBytes, MaxResponseBytes: cfg.MaxResponseBytes,
				MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey,
			})
		},
		Unsupported: idemtest.MaxRecords, // the server's maxmemory bounds them
		Resolution:  time.Millisecond,
	}
}
