package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/idemtest"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

func TestContract(t *testing.T) { idemtest.Run(t, maker(connect(t))) }

func TestContractOnACluster(t *testing.T) {
	idemtest.Run(t, maker(cluster(t)))
}

// cluster starts three primaries and returns a client of them.
func cluster(tb testing.TB) *redis.ClusterClient {
	tb.Helper()
	nodes, err := testserver.StartRedisCluster(3)
	require.NoError(tb, err)
	var addrs []string
	for _, node := range nodes {
		tb.Cleanup(func() { require.NoError(tb, node.Close()) })
		addrs = append(addrs, node.Addr)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}
