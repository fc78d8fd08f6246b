package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/redisstore"
)

func TestConfigThatIsOutOfRange(t *testing.T) {
	for want, cfg := range map[string]redisstore.Config{
		`Config.Prefix is "{x}"`:                                    {Prefix: "{x}"},
		`Config.Prefix is "a b"`:                                    {Prefix: "a b"},
		`want at most 128 bytes without braces`:                     {Prefix: strings.Repeat("x", 129)},
		`Config.TTL is -1ns, want zero, for the default, or more`:   {TTL: -1},
		`Config.Lease is -1ns, want zero, for the default, or more`: {Lease: -1},
		`Config.ReplicaTimeout is -1ns`:                             {ReplicaTimeout: -1},
		`Config.OnLeaseExpiry is 2, want`:                           {OnLeaseExpiry: 2},
		`Config.MaxKeyBytes is -1, want 1 to 65535`:                 {MaxKeyBytes: -1},
		`Config.MaxKeyBytes is 65536`:                               {MaxKeyBytes: 65536},
		`Config.MaxResponseBytes is 268435457, want`:                {MaxResponseBytes: 256<<20 + 1},
		`Config.MaxWaiters is -1`:                                   {MaxWaiters: -1},
		`Config.MaxWaitersPerKey is -1`:                             {MaxWaitersPerKey: -1},
		`Config.MinReplicas is 101, want 0 to 100`:                  {MinReplicas: 101},
	} {
		_, err := redisstore.New(connect(t), cfg)
		require.ErrorContains(t, err, want)
	}
	_, err := redisstore.New(nil, redisstore.Config{})
	require.ErrorContains(t, err, "nil client")
	_, err = redisstore.NewWith(nil, redisstore.Config{})
	require.ErrorContains(t, err, "nil client")
}

// Its clients move keys to another server, each by itself.
func TestRingIsRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	_, err := redisstore.New(ring, redisstore.Config{})
	require.ErrorContains(t, err, "two callers would own one key")
	require.ErrorContains(t, err, "*redis.ClusterClient, or one store for each server")
}

// A client of somebody else's, which wraps one of go-redis.
type wrapped struct{ redis.UniversalClient }

func TestMinReplicasNeedsASingleConnection(t *testing.T) {
	s := open(t, wrapped{connect(t)}, redisstore.Config{MinReplicas: 1})
	_, err := s.Begin(t.Context(), request("k"))
	require.ErrorContains(t, err, "Config.MinReplicas needs a *redis.Client or *redis.ClusterClient, not a")
}
