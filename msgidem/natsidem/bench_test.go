package natsidem_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

const (
	benchWorkers  = 16
	benchPrefetch = 500 // the client's own default
	benchMessages = 10_000
)

// BenchmarkConsume lets sixteen workers consume the same messages, with the client alone and through the wrapper
// on the engine, turn and turn about, since a machine is never as fast as a second ago. It reports both, and the
// wrapper's part of the plain consumer's throughput. Server, client and handlers share this process and its
// processors; a stream is in a file, as it is by default, or in memory; and a handler does nothing or waits for a
// millisecond, as for a database. With MaxDeliver the wrapper asks for one message at a time.
func BenchmarkConsume(b *testing.B) {
	for _, c := range []struct {
		name string
		load
	}{
		{"file", load{storage: jetstream.FileStorage}},
		{"file-async", load{storage: jetstream.FileStorage, async: true}},
		{"memory", load{storage: jetstream.MemoryStorage}},
		{"memory-async", load{storage: jetstream.MemoryStorage, async: true}},
		{"file-1ms", load{storage: jetstream.FileStorage, handler: time.Millisecond}},
		{"file-maxdeliver", load{storage: jetstream.FileStorage, most: 50}},
		{"file-1ms-maxdeliver", load{storage: jetstream.FileStorage, handler: time.Millisecond, most: 50}},
	} {
		b.Run(c.name, func(b *testing.B) { c.compare(b) })
	}
}

// A load is what is consumed, and how.
type load struct {
	storage jetstream.StorageType
	async   bool          // acknowledgements are not confirmed
	handler time.Duration // how long it takes
	most    int           // MaxDeliver of the wrapper's consumer
}

func (l load) compare(b *testing.B) {
	br := startBrokerOn(b, l.storage)
	for i := range benchMessages {
		br.publish("order-"+strconv.Itoa(i), `{"account":"4711","amount":1999,"currency":"EUR"}`)
	}
	engine := openEngine(b, idem.Config{})
	var ratios []float64
	var plain, wrapped time.Duration
	for i := 0; b.Loop(); i++ {
		p := l.plain(b, br.consumer("plain-"+strconv.Itoa(i), time.Minute))
		w := l.wrapped(b, br.configured(limited("wrapped-"+strconv.Itoa(i), l.most)), engine)
		plain, wrapped = plain+p, wrapped+w
		ratios = append(ratios, p.Seconds()/w.Seconds())
	}
	per := func(d time.Duration) float64 { return float64(benchMessages*b.N) / d.Seconds() }
	b.ReportMetric(per(plain), "plain-msg/s")
	b.ReportMetric(per(wrapped), "wrapped-msg/s")
	slices.Sort(ratios) // the median, since the plain client sleeps through half a minute now and then
	b.ReportMetric(ratios[len(ratios)/2], "of-plain")
	b.ReportMetric(0, "ns/op")
}

func (l load) handle(context.Context, msgidem.Message, idem.Claim) error {
	if l.handler > 0 {
		<-time.After(l.handler)
	}
	return nil
}

func (l load) plain(b *testing.B, c jetstream.Consumer) time.Duration {
	messages, err := c.Messages(jetstream.PullMaxMessages(benchPrefetch))
	require.NoError(b, err)
	defer messages.Stop()
	var left atomic.Int64
	left.Store(benchMessages)
	var workers sync.WaitGroup
	start := time.Now()
	for range benchWorkers {
		workers.Go(func() {
			for left.Add(-1) >= 0 {
				m, err := nextOf(messages)
				if err == nil {
					err = l.handle(b.Context(), msgidem.Message{}, idem.Claim{})
				}
				if err == nil && l.async {
					err = m.Ack()
				} else if err == nil {
					err = m.DoubleAck(b.Context())
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	workers.Wait()
	return time.Since(start)
}

// nextOf goes on when the client has slept through a heartbeat, as it does now and then.
func nextOf(messages jetstream.MessagesContext) (jetstream.Msg, error) {
	for {
		m, err := messages.Next()
		if !errors.Is(err, jetstream.ErrNoHeartbeat) {
			return m, err
		}
	}
}

func (l load) wrapped(b *testing.B, c jetstream.Consumer, engine *idem.Engine) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var done atomic.Int64
	h, err := msgidem.New(engine, l.handle, msgidem.Config{
		Workers: benchWorkers,
		OnOutcome: func(_ context.Context, _ msgidem.Message, o msgidem.Outcome) {
			if o.Result == msgidem.Done && done.Add(1) == benchMessages {
				cancel()
			}
		},
	})
	require.NoError(b, err)
	src, err := natsidem.New(ctx, c, natsidem.Config{AckAsync: l.async, Prefetch: benchPrefetch})
	require.NoError(b, err)
	start := time.Now()
	require.NoError(b, h.Run(ctx, src))
	took := time.Since(start)
	require.NoError(b, src.Close())
	require.EqualValues(b, benchMessages, done.Load())
	return took
}
