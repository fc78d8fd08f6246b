package redisstore_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// A replicated cluster has a replica for each of its primaries.
type replicated struct {
	primaries, replicas []*testserver.Redis
	client              *redis.ClusterClient
}

func startReplicated(t *testing.T) replicated {
	t.Helper()
	primaries, replicas, err := testserver.StartRedisClusterWithReplicas(3)
	require.NoError(t, err)
	var addrs []string
	for i, primary := range primaries {
		t.Cleanup(func() { require.NoError(t, primary.Close()) })
		t.Cleanup(func() { require.NoError(t, replicas[i].Close()) })
		addrs = append(addrs, primary.Addr, replicas[i].Addr)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return replicated{primaries, replicas, c}
}

// keys returns n keys that the first primary has.
func (r replicated) keys(t *testing.T, prefix string, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		node, err := r.client.MasterForKey(t.Context(), name(prefix, strconv.Itoa(i)))
		require.NoError(t, err)
		if node.Options().Addr == r.primaries[0].Addr {
			keys = append(keys, strconv.Itoa(i))
		}
	}
	return keys
}

// part keeps the first replica from copying, until it is let again.
func (r replicated) part(t *testing.T) {
	t.Helper()
	do(t, r.replicas[0], "CONFIG", "SET", "masterauth", "wrong") // any password is, where there is none
	do(t, r.primaries[0], "CLIENT", "KILL", "TYPE", "replica")
}

func (r replicated) rejoin(t *testing.T) {
	t.Helper()
	do(t, r.replicas[0], "CONFIG", "SET", "masterauth", "")
}

func do(t *testing.T, server *testserver.Redis, command ...string) {
	t.Helper()
	_, err := server.Do(t.Context(), command...)
	require.NoError(t, err)
}

// What MinReplicas promises holds where each key has servers of its own, for the client that was there before.
func TestFailoverInACluster(t *testing.T) {
	r, cfg := startReplicated(t), redisstore.Config{Prefix: prefix(), MinReplicas: 1, ReplicaTimeout: 100 * time.Millisecond}
	hasty := open(t, r.client, cfg)
	cfg.ReplicaTimeout = 10 * time.Second
	s := open(t, r.client, cfg)
	keys := r.keys(t, cfg.Prefix, 2)
	running, done := fresh(t, s, request(keys[0])), fresh(t, s, request(keys[1]))

	// The replica is behind now, and Complete is to wait until it is no more.
	r.part(t)
	require.ErrorIs(t, hasty.Complete(t.Context(), done, text("done")), redisstore.ErrReplicas)
	r.rejoin(t)
	eventually(t, func() bool { return s.Complete(t.Context(), done, text("done")) == nil }, "the replica has it")

	require.NoError(t, r.primaries[0].Kill())
	do(t, r.replicas[0], "CLUSTER", "FAILOVER", "TAKEOVER")
	eventually(t, func() bool {
		_, err := s.Begin(t.Context(), request(keys[0]))
		return err == nil
	}, "the client finds the new primary")
	require.Equal(t, "done", string(expect(t, s, idem.Replay, request(keys[1])).Response.Body))
	expect(t, s, idem.InProgress, request(keys[0]))
	cfg.MinReplicas = 0 // there is none left
	heir := open(t, r.client, cfg)
	require.NoError(t, heir.Complete(t.Context(), running, text("late")))
	expect(t, heir, idem.Replay, request(keys[0]))
}
