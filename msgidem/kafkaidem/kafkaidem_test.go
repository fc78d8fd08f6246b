package kafkaidem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

func TestTwoConsumersOfAGroup(t *testing.T) {
	t.Parallel()
	for _, unordered := range []bool{false, true} {
		t.Run(fmt.Sprint("unordered ", unordered), func(t *testing.T) {
			t.Parallel()
			b := startBroker(t, 4)
			engine := openEngine(t, idem.Config{})
			set := setup{store: engine, Config: kafkaidem.Config{Unordered: unordered}}
			first := b.consume(set)
			const messages, copies = 100, 2
			for i := range messages * copies { // a copy is in another partition, of the other consumer perhaps
				b.produce(int32(i%4+i/messages)%4, fmt.Sprint("p", i%messages), fmt.Sprint("pay ", i%messages))
			}
			second := b.consume(set)
			b.members("billing", 2)
			for i := range messages { // these they share for certain
				b.produce(int32(i%4), fmt.Sprint("q", i), "pay 7")
			}
			for p := range int32(4) {
				b.commits("billing", p, messages*(copies+1)/4)
			}
			for i := range messages {
				for _, id := range []string{fmt.Sprint("p", i), fmt.Sprint("q", i)} {
					require.Equal(t, 1, first.runsOf(id)+second.runsOf(id), id)
				}
			}
			require.NotEmpty(t, second.ran())
			first.stop()
			second.stop()
			require.Zero(t, second.consumer.Stats().Partitions)
			require.Zero(t, second.consumer.Stats().InHand)
			require.EqualValues(t, messages*(copies+1), first.consumer.Stats().Polled+second.consumer.Stats().Polled)
		})
	}
}

func TestTwoGroupsHandleItOnceEach(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 2)
	engine := openEngine(t, idem.Config{})
	for i := range 20 {
		b.produce(int32(i%2), fmt.Sprint("p", i), "pay 7")
	}
	for _, group := range []string{"billing", "mail"} {
		s := b.consume(setup{store: engine, group: group})
		b.commits(group, 0, 10)
		b.commits(group, 1, 10)
		for i := range 20 {
			require.Equal(t, 1, s.runsOf(fmt.Sprint("p", i)))
		}
	}
}

func TestCrashBetweenCompleteAndCommit(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	engine := openEngine(t, idem.Config{})
	session := []kgo.Opt{kgo.SessionTimeout(500 * time.Millisecond)}
	first := b.consume(setup{store: engine, client: session, Config: kafkaidem.Config{CommitInterval: time.Hour}})
	for i := range 10 {
		b.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	first.waitFor(msgidem.Done, 10)
	first.crash()
	require.Zero(t, b.committed("billing", 0))

	second := b.consume(setup{store: engine, client: session})
	b.commits("billing", 0, 10)
	second.waitFor(msgidem.Skipped, 10)
	require.Empty(t, second.ran())
}

func TestHandlerFailsThenSucceeds(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	var effects, failures atomic.Int32
	s := b.consume(setup{store: openEngine(t, idem.Config{}), fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if m.ID == "p1" {
			switch failures.Add(1) {
			case 1:
				return errors.New("not yet")
			case 2:
				panic("not yet either")
			case 3:
				runtime.Goexit()
			}
		}
		effects.Add(1)
		return nil
	}})
	for i := range 4 {
		b.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	b.commits("billing", 0, 4)
	require.Equal(t, []string{"p0", "p1", "p1", "p1", "p1", "p2", "p3"}, s.ran(), "in order, and nothing skipped")
	require.EqualValues(t, 4, effects.Load())
}

func TestPoison(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	s := b.consume(setup{
		store: openEngine(t, idem.Config{}), handler: msgidem.Config{MaxAttempts: 3},
		fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			if m.ID == "p1" {
				return errors.New("can't\nbe done")
			}
			return nil
		},
	})
	b.produce(0, "p1", "pay 7")
	b.produce(0, "p2", "pay 8")
	b.produce(0, "p1", "pay 7")
	b.commits("billing", 0, 3)
	require.Equal(t, []string{"p1", "p1", "p1", "p2"}, s.ran(), "the rest goes on, and the duplicate does not run")
	l := b.letters(1)[0]
	require.Equal(t, "pay 7", string(l.Value))
	require.Equal(t, "customer 1", string(l.Key))
	require.Equal(t, []string{"t1", "p1", "billing", "orders", "0", "0", "msgidem: attempts used up: can't be done"}, []string{
		header(l, "Trace"), header(l, kafkaidem.IDHeader), header(l, kafkaidem.ScopeHeader), header(l, kafkaidem.TopicHeader),
		header(l, kafkaidem.PartitionHeader), header(l, kafkaidem.OffsetHeader), header(l, kafkaidem.ReasonHeader),
	})
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	s := b.consume(setup{store: openEngine(t, idem.Config{})})
	b.produce(0, "p1", "pay 7")
	b.produce(0, "p1", "pay 8")
	b.commits("billing", 0, 2)
	require.Equal(t, []string{"p1"}, s.ran())
	l := b.letters(1)[0]
	require.Equal(t, "pay 8", string(l.Value))
	require.Contains(t, header(l, kafkaidem.ReasonHeader), "fingerprint")
}

// A refusing producer fails until it is told not to.
type refusing struct {
	kafkaidem.Producer
	refuses atomic.Bool
}

func (p *refusing) ProduceSync(ctx context.Context, records ...*kgo.Record) kgo.ProduceResults {
	if p.refuses.Load() {
		return kgo.ProduceResults{{Record: records[0], Err: kerr.NotEnoughReplicas}}
	}
	return p.Producer.ProduceSync(ctx, records...)
}

func TestDeadLetterNotAcceptedIsNotCommitted(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 2)
	p := &refusing{Producer: b.producer}
	p.refuses.Store(true)
	s := b.consume(setup{
		store: openEngine(t, idem.Config{}), handler: msgidem.Config{DeadLetter: kafkaidem.DeadLetters(p, "dead")},
		fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			if m.ID == "p1" {
				return idem.Permanent(errors.New("can't be done"))
			}
			return nil
		},
	})
	b.produce(0, "p1", "pay 7")
	b.eventually(func() bool { return s.seen(msgidem.Retried) > 1 }, "refused twice")
	b.produce(1, "q", "pay 7")
	b.commits("billing", 1, 1) // so there was a commit after that
	require.Zero(t, b.committed("billing", 0))
	p.refuses.Store(false)
	b.commits("billing", 0, 1)
	require.Equal(t, "can't be done", header(b.letters(1)[0], kafkaidem.ReasonHeader))
	require.Equal(t, []string{"p1", "q"}, s.ran(), "only the letter is tried again")
	require.EqualValues(t, s.seen(msgidem.Retried), s.handler.Stats().HookErrors)
}

func TestCommitsOnlyTheContiguousPrefix(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 2)
	release := make(chan struct{})
	s := b.consume(setup{
		store: openEngine(t, idem.Config{}), Config: kafkaidem.Config{Unordered: true},
		fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			if m.ID == "p3" {
				<-release
			}
			return nil
		},
	})
	for i := range 10 {
		b.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	s.waitFor(msgidem.Done, 9)
	b.produce(1, "q", "pay 7")
	b.commits("billing", 1, 1) // so there was a commit after the nine
	require.EqualValues(t, 3, b.committed("billing", 0))
	close(release)
	b.commits("billing", 0, 10)
}

func TestShutdownWithWorkInHand(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 4)
	engine := openEngine(t, idem.Config{})
	inside, release := make(chan struct{}, 100), make(chan struct{})
	var began atomic.Int32
	first := b.consume(setup{store: engine, Config: kafkaidem.Config{Workers: 4, CommitInterval: time.Hour},
		fn: func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			if began.Add(1) > 4 {
				<-time.After(100 * time.Millisecond)
			}
			inside <- struct{}{}
			<-release
			return ctx.Err()
		}})
	for i := range 48 {
		b.produce(int32(i%4), fmt.Sprint("p", i), "pay 7")
	}
	for range 4 {
		<-inside
	}
	b.eventually(func() bool { return first.consumer.Stats().InHand == 48 }, "all in hand")
	first.cancel()
	close(release)
	first.stop()
	done := first.seen(msgidem.Done)
	require.GreaterOrEqual(t, done, 4)
	require.Less(t, done, 48, "what waited was left")
	var committed int64
	for p := range int32(4) {
		committed += b.committed("billing", p)
	}
	require.EqualValues(t, done, committed, "what ran was finished and committed, and no more")

	second := b.consume(setup{store: engine})
	for p := range int32(4) {
		b.commits("billing", p, 12)
	}
	for i := range 48 {
		id := fmt.Sprint("p", i)
		require.Equal(t, 1, first.runsOf(id)+second.runsOf(id))
	}
	require.Zero(t, second.seen(msgidem.Skipped))
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, fn msgidem.Func) *service {
		b := startBroker(t, 1)
		inside := make(chan struct{})
		s := b.consume(setup{store: openEngine(t, idem.Config{}), Config: kafkaidem.Config{DrainTimeout: 100 * time.Millisecond},
			fn: func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
				close(inside)
				return fn(ctx, m, c)
			}})
		b.produce(0, "p1", "pay 7")
		<-inside
		s.cancel()
		return s
	}
	t.Run("for a handler that heeds its context", func(t *testing.T) {
		t.Parallel()
		cause := make(chan error, 1)
		s := run(t, func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		})
		s.stop()
		require.ErrorIs(t, <-cause, msgidem.ErrStopped)
		require.Zero(t, s.broker.committed("billing", 0))
	})
	t.Run("nor for one that does not", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		s := run(t, func(context.Context, msgidem.Message, idem.Claim) error {
			<-release
			return nil
		})
		require.ErrorIs(t, receive(s.broker, s.end), msgidem.ErrStuck)
		s.end <- nil // for stop
		close(release)
		s.waitFor(msgidem.Left, 1)
	})
	t.Run("nor for an attempt that is to come", func(t *testing.T) {
		t.Parallel()
		b := startBroker(t, 1)
		s := b.consume(setup{store: openEngine(t, idem.Config{}), handler: msgidem.Config{Backoff: func(int) time.Duration { return time.Hour }},
			fn: func(context.Context, msgidem.Message, idem.Claim) error { return errors.New("not yet") }})
		b.produce(0, "p1", "pay 7")
		s.waitFor(msgidem.Retried, 1)
		s.stop()
		require.Zero(t, b.committed("billing", 0))
	})
}

func TestSlowHandlerKeepsTheMembership(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	s := b.consume(setup{
		store:  openEngine(t, idem.Config{Lease: 300 * time.Millisecond}),
		client: []kgo.Opt{kgo.SessionTimeout(time.Second), kgo.RebalanceTimeout(time.Second)},
		fn: func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	})
	before := b.members("billing", 1)
	b.produce(0, "p1", "pay 7")
	b.commits("billing", 0, 1)
	require.Equal(t, []string{"p1"}, s.ran())
	after := b.members("billing", 1)
	require.Equal(t, before.Epoch, after.Epoch, "nothing was rebalanced")
	require.Equal(t, before.Members[0].MemberID, after.Members[0].MemberID)
}

func TestMessageInProgressElsewhere(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 2)
	engine := openEngine(t, idem.Config{})
	out, err := engine.Begin(t.Context(), idem.Request{
		Scope: "billing", Key: "p1", Fingerprint: idem.FingerprintOf([]byte("pay 7")), Lease: time.Hour,
	})
	require.NoError(t, err)
	b.produce(0, "p1", "pay 7")
	b.produce(0, "p2", "pay 8")
	s := b.consume(setup{store: engine, handler: msgidem.Config{Wait: 10 * time.Millisecond}})
	s.waitFor(msgidem.Retried, 1)
	b.produce(1, "q", "pay 9")
	b.commits("billing", 1, 1) // so there was a commit after that
	require.Zero(t, b.committed("billing", 0), "if the other one dies it must come again")
	require.NoError(t, engine.Complete(t.Context(), out.Claim, idem.Response{}))
	b.commits("billing", 0, 2) // although the lease it was told of is an hour
	require.Equal(t, []string{"q", "p2"}, s.ran())
}

func TestOnePartitionStandsStillTheOthersGoOn(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 2)
	release := make(chan struct{})
	const prefetch = 10
	for i := range 100 { // before there is a consumer, so that its first fetch has more than it may take
		b.produce(0, fmt.Sprint("p", i), "pay 7")
	}
	for i := range 100 {
		b.produce(1, fmt.Sprint("q", i), "pay 7")
	}
	s := b.consume(setup{store: openEngine(t, idem.Config{}), Config: kafkaidem.Config{Prefetch: prefetch},
		fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			if m.ID == "p0" {
				<-release
			}
			return nil
		}})
	b.commits("billing", 1, 100)
	stats := s.consumer.Stats()
	require.GreaterOrEqual(t, stats.InHand, prefetch)
	require.Less(t, stats.InHand, 2*prefetch)
	require.Equal(t, map[string][]int32{"orders": {0}}, s.client.PauseFetchPartitions(nil))
	close(release)
	b.commits("billing", 0, 100)
	require.Empty(t, s.client.PauseFetchPartitions(nil))
	require.Len(t, s.ran(), 200)
}

func TestCommitThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	b.cluster.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.OffsetCommitRequest)
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, topic := range req.Topics {
			out := kmsg.NewOffsetCommitResponseTopic()
			out.Topic, out.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				failed := kmsg.NewOffsetCommitResponseTopicPartition()
				failed.Partition, failed.ErrorCode = p.Partition, kerr.GroupAuthorizationFailed.Code
				out.Partitions = append(out.Partitions, failed)
			}
			resp.Topics = append(resp.Topics, out)
		}
		return resp, nil, true
	})
	s := b.consume(setup{store: openEngine(t, idem.Config{})})
	b.produce(0, "p1", "pay 7")
	b.commits("billing", 0, 1)
	require.EqualValues(t, 1, s.consumer.Stats().CommitErrors)
	s.stop()
	require.EqualValues(t, 1, s.consumer.Stats().Commits, "what the broker has is not sent again")
}

func TestRunEndsWithItsClient(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	s := b.make(setup{store: openEngine(t, idem.Config{})})
	end := make(chan error)
	go func() { end <- s.consumer.Run(t.Context(), s.client) }()
	b.produce(0, "p1", "pay 7")
	b.commits("billing", 0, 1)
	s.client.Close()
	require.ErrorIs(t, receive(b, end), kgo.ErrClientClosed)
}

func TestIDThatPanics(t *testing.T) {
	t.Parallel()
	b := startBroker(t, 1)
	s := b.consume(setup{store: openEngine(t, idem.Config{}), Config: kafkaidem.Config{ID: func(r *kgo.Record) string {
		if r.Offset == 0 {
			panic("no idea")
		}
		return string(r.Value)
	}}})
	b.produce(0, "p1", "pay 7")
	b.produce(0, "p2", "pay 8")
	b.commits("billing", 0, 2)
	require.Equal(t, "pay 7", string(b.letters(1)[0].Value))
	require.Equal(t, []string{"pay 8"}, s.ran())
}
