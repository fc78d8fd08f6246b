package kafkaidem_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

// A move is a partition whose messages one consumer handles when a second one joins. All partitions are taken away
// then, since the group is balanced eagerly.
type move struct {
	*broker
	first, second *service
	effects       atomic.Int32 // of the first message
	release       chan struct{}
	taken         chan struct{} // holds a value when a revocation has begun
	stuck         chan struct{} // holds a value when it did not wait for a handler any longer
	cause         chan error    // for which the context of the first message's handler ended
}

// startMove starts the first consumer and waits until nine of ten messages are done: all but the first, which waits
// for m.release, and, if it heeds its context, for the end of that.
func startMove(t *testing.T, heeds bool, cfg kafkaidem.Config) *move {
	m := &move{
		broker: startBroker(t, 1), release: make(chan struct{}), cause: make(chan error, 10),
		taken: make(chan struct{}, 1), stuck: make(chan struct{}, 1),
	}
	cfg.Unordered, cfg.Logger = true, slog.New(&listener{slog.DiscardHandler, map[string]chan struct{}{
		"kafkaidem: partitions taken away": m.taken, "kafkaidem: handlers still run in partitions that are taken away": m.stuck,
	}})
	set := setup{
		store: openEngine(t, idem.Config{}), Config: cfg,
		handler: msgidem.Config{MaxAttempts: 1}, // an attempt that a move ends is none
		client:  []kgo.Opt{kgo.Balancers(kgo.RoundRobinBalancer())},
		fn: func(ctx context.Context, msg msgidem.Message, _ idem.Claim) error {
			if msg.ID != "p0" {
				return nil
			}
			var done <-chan struct{}
			if heeds {
				done = ctx.Done()
			}
			select {
			case <-m.release:
				m.effects.Add(1)
				return nil
			case <-done:
				m.cause <- context.Cause(ctx)
				return ctx.Err()
			}
		},
	}
	for i := range 10 {
		m.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	m.first = m.consume(set)
	m.first.waitFor(msgidem.Done, 9)
	require.Zero(t, m.committed("billing", 0))
	m.second = m.consume(set)
	return m
}

// A listener is a log by which is noticed how far a revocation is.
type listener struct {
	slog.Handler
	heard map[string]chan struct{} // by message
}

func (*listener) Enabled(context.Context, slog.Level) bool { return true }

func (l *listener) Handle(_ context.Context, r slog.Record) error {
	select {
	case l.heard[r.Message] <- struct{}{}:
	default: // there is a value, or nobody wants to know
	}
	return nil
}

func TestRebalanceWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	t.Run("that finishes in time: it is committed before the partition moves", func(t *testing.T) {
		t.Parallel()
		m := startMove(t, true, kafkaidem.Config{RevokeTimeout: 2 * time.Second, CommitInterval: time.Hour})
		receive(m.broker, m.taken)
		<-time.After(50 * time.Millisecond) // in which nothing ends the handler's context
		close(m.release)
		m.members("billing", 2)
		require.EqualValues(t, 10, m.committed("billing", 0))
		require.EqualValues(t, 1, m.effects.Load())
		m.produce(0, "p10", "pay 7")
		m.eventually(func() bool { return m.first.seen(msgidem.Done)+m.second.seen(msgidem.Done) == 11 }, "the next message")
		require.Zero(t, m.first.seen(msgidem.Skipped)+m.second.seen(msgidem.Skipped), "nothing came again")
	})
	t.Run("that does not, but heeds its context: the next consumer runs it, and only it", func(t *testing.T) {
		t.Parallel()
		m := startMove(t, true, kafkaidem.Config{RevokeTimeout: 100 * time.Millisecond})
		require.ErrorIs(t, receive(m.broker, m.cause), kafkaidem.ErrRevoked)
		m.members("billing", 2)
		require.Empty(t, m.stuck, "it ended before the partition moved")
		require.Zero(t, m.committed("billing", 0), "nothing beyond the hole")
		close(m.release)
		m.commits("billing", 0, 10)
		require.EqualValues(t, 1, m.effects.Load())
		require.Equal(t, 2, m.first.runsOf("p0")+m.second.runsOf("p0"))
		require.Equal(t, 9, m.first.seen(msgidem.Skipped)+m.second.seen(msgidem.Skipped))
	})
	t.Run("that does not heed its context: the claim keeps the next consumer from running it", func(t *testing.T) {
		t.Parallel()
		m := startMove(t, false, kafkaidem.Config{RevokeTimeout: 100 * time.Millisecond})
		m.members("billing", 2)
		require.Zero(t, m.committed("billing", 0))
		m.eventually(func() bool { return m.first.seen(msgidem.Skipped)+m.second.seen(msgidem.Skipped) == 9 }, "the others are skipped")
		close(m.release)
		m.commits("billing", 0, 10)
		require.EqualValues(t, 1, m.effects.Load())
		require.Equal(t, 1, m.first.runsOf("p0")+m.second.runsOf("p0"))
		m.first.waitFor(msgidem.Left, 1)
	})
}

func TestRebalanceWhileTheConsumerDrains(t *testing.T) {
	t.Parallel()
	m := startMove(t, false, kafkaidem.Config{RevokeTimeout: 100 * time.Millisecond})
	m.first.cancel() // and so it drains, for the handler of p0, while its partition is taken away
	m.members("billing", 2)
	require.Zero(t, m.committed("billing", 0), "nothing beyond the hole")
	close(m.release)
	m.first.stop()
	m.first.waitFor(msgidem.Left, 1) // the partition is not its own any more
	m.commits("billing", 0, 10)
	require.EqualValues(t, 1, m.effects.Load())
}

func TestPartitionsLost(t *testing.T) {
	t.Parallel()
	m := &move{broker: startBroker(t, 1), release: make(chan struct{}), cause: make(chan error, 10)}
	s := m.consume(setup{
		store: openEngine(t, idem.Config{}), Config: kafkaidem.Config{Prefetch: 1},
		fn: func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			select {
			case <-m.release:
				m.effects.Add(1)
				return nil
			case <-ctx.Done():
				m.cause <- context.Cause(ctx)
				return ctx.Err()
			}
		},
	})
	for i := range 3 {
		m.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	m.eventually(func() bool { return len(s.client.PauseFetchPartitions(nil)) == 1 }, "paused")
	m.cluster.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	require.ErrorIs(t, receive(m.broker, m.cause), kafkaidem.ErrRevoked)
	require.Zero(t, m.committed("billing", 0))
	close(m.release)
	m.commits("billing", 0, 3) // by the same consumer, that has joined again, and has not forgotten to fetch
	require.EqualValues(t, 3, m.effects.Load())
	require.Equal(t, 2, s.runsOf("p0"))
	require.EqualValues(t, 1, s.consumer.Stats().FetchErrors, "the client said that it was expelled")
}
