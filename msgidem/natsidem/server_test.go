package natsidem_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// A broker is a NATS server in this process, with a stream of orders and one of dead letters.
type broker struct {
	testing.TB
	server *server.Server
	js     jetstream.JetStream
}

func startBroker(t testing.TB) *broker { return startBrokerOn(t, jetstream.MemoryStorage) }

func startBrokerOn(t testing.TB, storage jetstream.StorageType) *broker {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(patience))
	b := &broker{TB: t, server: s}
	b.js = b.connect()
	for _, name := range []string{"orders", "dead"} {
		_, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Storage: storage, Duplicates: 100 * time.Millisecond,
		})
		require.NoError(t, err)
	}
	return b
}

// connect returns a connection of its own.
func (b *broker) connect() jetstream.JetStream {
	conn, err := nats.Connect("", nats.InProcessServer(b.server))
	require.NoError(b, err)
	b.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(b, err)
	return js
}

// consumer returns a durable consumer of orders, over a connection of its own.
func (b *broker) consumer(name string, ackWait time.Duration) jetstream.Consumer {
	return b.configured(jetstream.ConsumerConfig{Durable: name, AckWait: ackWait, AckPolicy: jetstream.AckExplicitPolicy})
}

func (b *broker) configured(cfg jetstream.ConsumerConfig) jetstream.Consumer {
	c, err := b.connect().CreateOrUpdateConsumer(b.Context(), "orders", cfg)
	require.NoError(b, err)
	return c
}

func (b *broker) publish(id, payload string) {
	m := nats.NewMsg("orders.new")
	m.Data = []byte(payload)
	m.Header.Set("Trace", "t1")
	// What is expected of the stream is an order to the server: a dead letter that had it would be refused.
	_, err := b.js.PublishMsg(b.Context(), m, jetstream.WithMsgID(id), jetstream.WithExpectStream("orders"))
	require.NoError(b, err)
}

// settled waits until the consumer has nothing left to deliver or to be acknowledged.
func (b *broker) settled(c jetstream.Consumer) {
	b.eventually(func() bool {
		info, err := c.Info(b.Context())
		require.NoError(b, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	}, "all messages settled")
}

// eventually waits for what a server does in its own time.
func (b *broker) eventually(cond func() bool, what string) {
	b.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-tick.C {
		require.True(b, time.Now().Before(deadline), what)
	}
}

func openEngine(t testing.TB, cfg idem.Config) *idem.Engine {
	t.Helper()
	e, err := idem.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// A service is a handler that consumes until it is stopped, and what it saw.
type service struct {
	handler *msgidem.Handler
	stop    func() // waits until it has ended

	mu       sync.Mutex // guards what follows
	runs     map[string]int
	outcomes []msgidem.Outcome
}

func (s *service) runsOf(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
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

// consume starts a service. Failed attempts come again after 20 ms unless cfg says otherwise.
func (b *broker) consume(c jetstream.Consumer, store idem.Store, cfg msgidem.Config, fn msgidem.Func) *service {
	s := &service{runs: map[string]int{}}
	if cfg.Backoff == nil {
		cfg.Backoff = func(int) time.Duration { return 20 * time.Millisecond }
	}
	if cfg.DeadLetter == nil {
		cfg.DeadLetter = natsidem.DeadLetters(b.js, "dead.orders")
	}
	cfg.OnOutcome = func(_ context.Context, _ msgidem.Message, o msgidem.Outcome) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outcomes = append(s.outcomes, o)
	}
	var err error
	s.handler, err = msgidem.New(store, func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
		s.mu.Lock()
		s.runs[m.ID]++
		s.mu.Unlock()
		return fn(ctx, m, c)
	}, cfg)
	require.NoError(b, err)
	src, err := natsidem.New(b.Context(), c, natsidem.Config{})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- s.handler.Run(ctx, src) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b, <-end)
		require.NoError(b, src.Close())
	})
	b.Cleanup(s.stop)
	return s
}

// letters waits for n dead letters, and makes sure that there are no more.
func (b *broker) letters(n int) []*jetstream.RawStreamMsg {
	stream, err := b.js.Stream(b.Context(), "dead")
	require.NoError(b, err)
	count := func() int {
		info, err := stream.Info(b.Context())
		require.NoError(b, err)
		return int(info.State.Msgs)
	}
	b.eventually(func() bool { return count() >= n }, fmt.Sprintf("%d dead letters", n))
	require.Equal(b, n, count())
	var list []*jetstream.RawStreamMsg
	for i := range n {
		m, err := stream.GetMsg(b.Context(), uint64(i+1))
		require.NoError(b, err)
		list = append(list, m)
	}
	return list
}
