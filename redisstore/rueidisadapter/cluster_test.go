package rueidisadapter_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// startReplicated starts a cluster of three primaries with a replica each, and returns the first of both, a client that
// was told of another one, and what asks for a key that the first primary has.
func startReplicated(t *testing.T, prefix string) (primary, replica *testserver.Redis, c rueidis.Client, req idem.Request) {
	t.Helper()
	primaries, replicas, err := testserver.StartRedisClusterWithReplicas(3)
	require.NoError(t, err)
	for i, primary := range primaries {
		t.Cleanup(func() { require.NoError(t, primary.Close()) })
		t.Cleanup(func() { require.NoError(t, replicas[i].Close()) })
	}
	c = client(t, "redis://"+primaries[1].Addr)
	for i := 0; ; i++ {
		req = request(strconv.Itoa(i))
		slot, err := strconv.Atoi(do(t, primaries[0], "CLUSTER", "KEYSLOT", prefix+":1:s:"+req.Key))
		require.NoError(t, err)
		if slot < 16384/len(primaries) {
			return primaries[0], replicas[0], c, req
		}
	}
}

// What MinReplicas promises holds where each key has servers of its own, for the client that was there before.
func TestFailoverInACluster(t *testing.T) {
	primary, replica, c, req := startReplicated(t, "p")
	cfg := redisstore.Config{Prefix: "p", MinReplicas: 1, ReplicaTimeout: 100 * time.Millisecond}
	hasty := open(t, c, cfg)
	cfg.ReplicaTimeout = 10 * time.Second
	s := open(t, c, cfg)
	claim := expect(t, s, idem.Fresh, req).Claim

	// The replica is behind while it gives a password where there is none, and Complete is to wait until it is no more.
	do(t, replica, "CONFIG", "SET", "masterauth", "wrong")
	do(t, primary, "CLIENT", "KILL", "TYPE", "replica")
	require.ErrorIs(t, hasty.Complete(t.Context(), claim, text("done")), redisstore.ErrReplicas)
	do(t, replica, "CONFIG", "SET", "masterauth", "")
	eventually(t, func() bool { return s.Complete(t.Context(), claim, text("done")) == nil }, "the replica has it")

	require.NoError(t, primary.Kill())
	do(t, replica, "CLUSTER", "FAILOVER", "TAKEOVER")
	eventually(t, func() bool {
		_, err := s.Begin(t.Context(), req)
		return err == nil
	}, "the client finds the new primary")
	require.Equal(t, "done", string(expect(t, s, idem.Replay, req).Response.Body))
}
