package rueidisadapter_test

import (
	"bufio"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
	"github.com/seed-5bb5eb37/idem/redisstore/rueidisadapter"
)

// redisURL is the server of all tests that need nothing but a server.
var redisURL string

func TestMain(m *testing.M) {
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

func connect(tb testing.TB) rueidis.Client {
	tb.Helper()
	return client(tb, redisURL)
}

func client(tb testing.TB, url string) rueidis.Client {
	tb.Helper()
	opt, err := rueidis.ParseURL(url)
	require.NoError(tb, err)
	return clientWith(tb, opt)
}

func clientWith(tb testing.TB, opt rueidis.ClientOption) rueidis.Client {
	tb.Helper()
	opt.DisableCache = true
	c, err := rueidis.NewClient(opt)
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	return c
}

func open(tb testing.TB, c rueidis.Client, cfg redisstore.Config) *redisstore.Store {
	tb.Helper()
	if cfg.Prefix == "" {
		cfg.Prefix = "idemtest-" + rand.Text()[:12]
	}
	s, err := rueidisadapter.New(c, cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

func maker(c rueidis.Client) idemtest.Maker {
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

func TestContract(t *testing.T) { idemtest.Run(t, maker(connect(t))) }

func TestContractOnACluster(t *testing.T) {
	nodes, err := testserver.StartRedisCluster(3)
	require.NoError(t, err)
	var addrs []string
	for _, node := range nodes {
		t.Cleanup(func() { require.NoError(t, node.Close()) })
		addrs = append(addrs, node.Addr)
	}
	idemtest.Run(t, maker(client(t, "redis://"+strings.Join(addrs[:1], ""))))
}

// A server that refuses to tell whether it evicts is told from one that is down, by this client's errors as well.
func TestWarningWhenTheServerDoesNotSay(t *testing.T) {
	server, err := testserver.StartRedis()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	_, err = server.Do(t.Context(), "ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-info")
	require.NoError(t, err)
	c := clientWith(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "limited", Password: "any"})
	read, write := io.Pipe()
	open(t, c, redisstore.Config{Logger: slog.New(slog.NewTextHandler(write, nil))})
	line, err := bufio.NewReader(read).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "does not tell its maxmemory-policy")
	require.Contains(t, line, "NOPERM")
}
