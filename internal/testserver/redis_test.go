package testserver_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

// redisDo sends a command that must not fail.
func redisDo(t *testing.T, r *testserver.Redis, command ...string) string {
	t.Helper()
	reply, err := r.Do(t.Context(), command...)
	require.NoError(t, err)
	return reply
}

func startRedis(t *testing.T, args ...string) *testserver.Redis {
	t.Helper()
	r, err := testserver.StartRedis(args...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func TestRedisComesBackWithItsFiles(t *testing.T) {
	r := startRedis(t, "--appendonly", "yes")
	addr := r.Addr
	require.Equal(t, "OK", redisDo(t, r, "SET", "k", "a\r\nb"))
	require.NoError(t, r.Stop())
	_, err := r.Do(t.Context(), "GET", "k")
	require.Error(t, err)
	require.NoError(t, r.Start())
	require.Equal(t, addr, r.Addr)
	require.Equal(t, "a\r\nb", redisDo(t, r, "GET", "k"))
}

func TestRedisReplies(t *testing.T) {
	r := startRedis(t)
	require.Equal(t, "1", redisDo(t, r, "RPUSH", "l", "a"))
	require.Equal(t, "2", redisDo(t, r, "RPUSH", "l", "b"))
	require.Equal(t, "a b", redisDo(t, r, "LRANGE", "l", "0", "-1"))
	require.Empty(t, redisDo(t, r, "GET", "absent"))
	_, err := r.Do(t.Context(), "GET", "l")
	require.ErrorContains(t, err, "WRONGTYPE")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Do(ctx, "PING")
	require.ErrorIs(t, err, context.Canceled)
}

func TestRedisReplica(t *testing.T) {
	r := startRedis(t)
	redisDo(t, r, "SET", "k", "v")
	replica, err := testserver.StartRedisReplica(r.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Close()) })
	require.Equal(t, "v", redisDo(t, replica, "GET", "k"))
	redisDo(t, r, "SET", "k", "w")
	require.Equal(t, "1", redisDo(t, r, "WAIT", "1", "10000"))
}

func TestRedisCluster(t *testing.T) {
	nodes, err := testserver.StartRedisCluster(3)
	require.NoError(t, err)
	require.Len(t, nodes, 3)
	moved := 0
	for _, node := range nodes {
		t.Cleanup(func() { require.NoError(t, node.Close()) })
		if _, err := node.Do(t.Context(), "SET", "k", "v"); err != nil {
			require.ErrorContains(t, err, "MOVED")
			moved++
		}
	}
	require.Equal(t, 2, moved, "nodes that have not got the key")
}

func TestRedisClusterWithReplicas(t *testing.T) {
	primaries, replicas, err := testserver.StartRedisClusterWithReplicas(3)
	require.NoError(t, err)
	require.Len(t, primaries, 3)
	require.Len(t, replicas, 3)
	for i, primary := range primaries {
		replica := replicas[i]
		t.Cleanup(func() { require.NoError(t, primary.Close()) })
		t.Cleanup(func() { require.NoError(t, replica.Close()) })
		host, port, err := net.SplitHostPort(primary.Addr)
		require.NoError(t, err)
		require.Contains(t, redisDo(t, replica, "ROLE"), "slave "+host+" "+port+" connected")
		require.Contains(t, redisDo(t, primary, "ROLE"), "master ")
	}
}

func TestRedisThatDoesNotStart(t *testing.T) {
	_, err := testserver.StartRedis("--no-such-option", "yes")
	require.ErrorContains(t, err, "no-such-option")
}

func TestRedisURL(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://elsewhere:6379")
	url, private, err := testserver.RedisURL()
	require.NoError(t, err)
	require.Equal(t, "redis://elsewhere:6379", url)
	require.Nil(t, private)

	t.Setenv("REDIS_URL", "")
	url, private, err = testserver.RedisURL()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, private.Close()) })
	require.Equal(t, "redis://"+private.Addr, url)
}
