package kafkaidem_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// A broker is a Kafka broker in this process, with a topic of orders and one of dead letters.
type broker struct {
	testing.TB
	cluster  *kfake.Cluster
	producer *kgo.Client
}

func startBroker(t testing.TB, partitions int32) *broker {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"), kfake.SeedTopics(1, "dead"),
		kfake.GroupMinSessionTimeout(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	b := &broker{TB: t, cluster: cluster}
	b.producer, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(b.producer.Close)
	return b
}

// produce sends a message to a partition of orders.
func (b *broker) produce(partition int32, id, payload string) {
	b.Helper()
	r := &kgo.Record{
		Topic: "orders", Partition: partition, Key: []byte("customer 1"), Value: []byte(payload),
		Headers: []kgo.RecordHeader{{Key: "Trace", Value: []byte("t1")}, {Key: kafkaidem.DefaultIDHeader, Value: []byte(id)}},
	}
	require.NoError(b, b.producer.ProduceSync(b.Context(), r).FirstErr())
}

// committed returns the group's offset of a partition of orders, 0 if there is none.
func (b *broker) committed(group string, partition int32) int64 {
	info := b.cluster.GroupInfo(group)
	if info == nil {
		return 0
	}
	return info.Commits["orders"][partition].Offset
}

// commits waits until the group's offset of a partition is what is wanted.
func (b *broker) commits(group string, partition int32, want int64) {
	b.Helper()
	b.eventually(func() bool { return b.committed(group, partition) == want },
		fmt.Sprintf("%s commits %d of partition %d", group, want, partition))
}

// members waits until the group has n members and is stable.
func (b *broker) members(group string, n int) *kfake.GroupInfo {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	info, err := b.cluster.WaitGroupStable(ctx, group, n)
	require.NoError(b, err)
	return info
}

// eventually waits for what others do in their own time.
func (b *broker) eventually(cond func() bool, what string) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-tick.C {
		require.True(b, time.Now().Before(deadline), what)
	}
}

// receive waits for what somebody sends in his own time.
func receive[T any](b *broker, ch <-chan T) T {
	b.Helper()
	var v T
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.FailNow(b, "nothing was sent")
	}
	return v
}

// letters returns n dead letters.
func (b *broker) letters(n int) (list []*kgo.Record) {
	b.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumeTopics("dead"))
	require.NoError(b, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	for len(list) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(b, fetches.Err0())
		list = append(list, fetches.Records()...)
	}
	require.Len(b, list, n)
	return list
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func openEngine(t testing.TB, cfg idem.Config) *idem.Engine {
	t.Helper()
	e, err := idem.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// A setup is what a service is made of. The zero value works.
type setup struct {
	group   string // "billing"
	store   idem.Store
	handler msgidem.Config
	kafkaidem.Config
	client []kgo.Opt
	fn     msgidem.Func // nil: succeeds
}

// A service is a consumer that runs until it is stopped, and what it saw.
type service struct {
	broker   *broker
	handler  *msgidem.Handler
	consumer *kafkaidem.Consumer
	client   *kgo.Client
	dialer   *dialer
	kill     context.CancelFunc // of the client
	cancel   context.CancelFunc // of Run
	end      chan error         // what Run returned
	stop     func()             // waits until it has ended, in good order, and has left the group

	mu       sync.Mutex // guards what follows
	runs     map[string]int
	order    []string
	outcomes []msgidem.Outcome
}

func (s *service) runsOf(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

func (s *service) ran() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.order...)
}

// seen returns how many deliveries had the result.
func (s *service) seen(result msgidem.Result) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.outcomes {
		if o.Result == result {
			n++
		}
	}
	return n
}

func (s *service) waitFor(result msgidem.Result, n int) {
	s.broker.Helper()
	s.broker.eventually(func() bool { return s.seen(result) >= n }, fmt.Sprintf("%d times %v", n, result))
	require.Equal(s.broker, n, s.seen(result))
}

// make makes a service that does not run yet. It commits every 20 ms, and failed attempts come again after 20 ms.
func (b *broker) make(set setup) *service {
	b.Helper()
	s := &service{broker: b, runs: map[string]int{}, dialer: &dialer{}, end: make(chan error, 1)}
	if set.group == "" {
		set.group = "billing"
	}
	if set.handler.Backoff == nil {
		set.handler.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
	}
	if set.CommitInterval == 0 {
		set.CommitInterval = 20 * time.Millisecond
	}
	if set.handler.DeadLetter == nil {
		set.handler.DeadLetter = kafkaidem.DeadLetters(b.producer, "dead")
	}
	set.handler.OnOutcome = func(_ context.Context, _ msgidem.Message, o msgidem.Outcome) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outcomes = append(s.outcomes, o)
	}
	var err error
	s.handler, err = msgidem.New(set.store, func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
		s.mu.Lock()
		s.runs[m.ID]++
		s.order = append(s.order, m.ID)
		s.mu.Unlock()
		if set.fn == nil {
			return nil
		}
		return set.fn(ctx, m, c)
	}, set.handler)
	require.NoError(b, err)
	s.consumer, err = kafkaidem.New(s.handler, set.Config)
	require.NoError(b, err)
	life, kill := context.WithCancel(context.Background())
	b.Cleanup(kill)
	s.kill = kill
	opts := append(s.consumer.Options(), kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(s.dialer.dial), kgo.WithContext(life),
		kgo.ConsumerGroup(set.group), kgo.ConsumeTopics("orders"), kgo.HeartbeatInterval(50*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RebalanceTimeout(4*time.Second))
	s.client, err = kgo.NewClient(append(opts, set.client...)...)
	require.NoError(b, err)
	return s
}

// consume starts a service.
func (b *broker) consume(set setup) *service {
	b.Helper()
	s := b.make(set)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.end <- s.consumer.Run(ctx, s.client) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		err := <-s.end
		s.client.Close()
		assert.NoError(b, err)
	})
	b.Cleanup(func() { s.stop() }) // which may be another one by then
	return s
}

// crash ends the service as the death of its process would, as far as brokers see it: nothing of it reaches them.
func (s *service) crash() {
	s.dialer.cut()
	s.stop = func() {}
	s.cancel()
	if err := <-s.end; err != nil {
		s.broker.Log("crashed:", err)
	}
	s.kill()
	s.client.Close()
}

// A dialer connects until it is cut.
type dialer struct {
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
}

func (d *dialer) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	for _, conn := range d.conns {
		_ = conn.Close()
	}
}
