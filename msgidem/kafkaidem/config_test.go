package kafkaidem_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

func TestDefaultID(t *testing.T) {
	at := time.UnixMilli(1_750_000_000_000)
	r := &kgo.Record{Topic: "orders", Partition: 3, Offset: 17, Timestamp: at}
	require.Equal(t, "orders/3/17@1750000000000", kafkaidem.DefaultID(r))
	r.Headers = []kgo.RecordHeader{{Key: "ce_id", Value: []byte("c1")}, {Key: "Idempotency-Key"}}
	require.Equal(t, "orders/3/17@1750000000000", kafkaidem.DefaultID(r), "an empty one is none")
	require.Equal(t, "c1", kafkaidem.HeaderID("ce_id")(r))
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_id", Value: []byte("c2")})
	require.Equal(t, "c2", kafkaidem.HeaderID("ce_id")(r))
	long := &kgo.Record{Topic: string(make([]byte, 249)), Partition: 1<<31 - 1, Offset: 1<<63 - 1, Timestamp: at}
	require.LessOrEqual(t, len(kafkaidem.DefaultID(long)), 255)
	other := *long
	other.Topic = string(make([]byte, 248))
	require.NotEqual(t, kafkaidem.DefaultID(long), kafkaidem.DefaultID(&other))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	h, err := msgidem.New(openEngine(t, idem.Config{}), func(context.Context, msgidem.Message, idem.Claim) error { return nil }, msgidem.Config{})
	require.NoError(t, err)
	t.Run("of a Config", func(t *testing.T) {
		_, err := kafkaidem.New(nil, kafkaidem.Config{})
		require.ErrorContains(t, err, "nil handler")
		for want, cfg := range map[string]kafkaidem.Config{
			"Config.Workers is -1, want 0 to 65536":           {Workers: -1},
			"Config.Prefetch is 65537, want 0 to 65536":       {Prefetch: 65537},
			"Config.CommitInterval is -1s, want zero or more": {CommitInterval: -time.Second},
			"Config.RevokeTimeout is -1s, want zero or more":  {RevokeTimeout: -time.Second},
			"Config.DrainTimeout is -1s, want zero or more":   {DrainTimeout: -time.Second},
		} {
			_, err := kafkaidem.New(h, cfg)
			require.ErrorContains(t, err, want)
		}
	})
	fresh := func(cfg kafkaidem.Config) *kafkaidem.Consumer {
		c, err := kafkaidem.New(h, cfg)
		require.NoError(t, err)
		return c
	}
	refuse := func(t *testing.T, c *kafkaidem.Consumer, want string, opts ...kgo.Opt) {
		client, err := kgo.NewClient(opts...)
		require.NoError(t, err)
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // for one that is taken
		defer cancel()
		require.ErrorContains(t, c.Run(ctx, client), want)
	}
	group := []kgo.Opt{kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders")}
	t.Run("of a client that commits by itself", func(t *testing.T) {
		refuse(t, fresh(kafkaidem.Config{}), "commits by itself", group...)
	})
	t.Run("of a client without a group", func(t *testing.T) {
		refuse(t, fresh(kafkaidem.Config{}), "no kgo.ConsumerGroup", kgo.ConsumeTopics("orders"))
	})
	t.Run("of a client of another consumer", func(t *testing.T) {
		refuse(t, fresh(kafkaidem.Config{}), "not made with the Options of this Consumer",
			append(fresh(kafkaidem.Config{}).Options(), group...)...)
	})
	t.Run("of two clients of one consumer", func(t *testing.T) {
		c := fresh(kafkaidem.Config{})
		client, err := kgo.NewClient(append(c.Options(), group...)...)
		require.NoError(t, err)
		defer client.Close()
		refuse(t, c, "used for another one as well", append(c.Options(), group...)...)
	})
	t.Run("of a client with another callback", func(t *testing.T) {
		for _, on := range []func(func(context.Context, *kgo.Client, map[string][]int32)) kgo.GroupOpt{
			kgo.OnPartitionsRevoked, kgo.OnPartitionsLost,
		} {
			c := fresh(kafkaidem.Config{})
			refuse(t, c, "another kgo.OnPartitionsRevoked or OnPartitionsLost",
				append(append(c.Options(), group...), on(func(context.Context, *kgo.Client, map[string][]int32) {}))...)
		}
	})
	t.Run("of a RevokeTimeout for which the group does not wait", func(t *testing.T) {
		c := fresh(kafkaidem.Config{RevokeTimeout: 31 * time.Second})
		refuse(t, c, "Config.RevokeTimeout is 31s, want at most half", append(c.Options(), group...)...)
	})
	t.Run("of a second Run", func(t *testing.T) {
		c := fresh(kafkaidem.Config{})
		client, err := kgo.NewClient(append(c.Options(), group...)...)
		require.NoError(t, err)
		defer client.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Run(ctx, client))
		require.ErrorContains(t, c.Run(ctx, client), "Run was called before")
		require.ErrorContains(t, c.Run(ctx, nil), "nil")
	})
}
