package bench_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	connections = 64

	// replayed is the number of keys that are replayed over and over.
	replayed = 1024

	// freshTTL lets responses expire while the benchmark runs, as they would after a day of running. It is
	// the shortest that fiber's store knows.
	freshTTL = time.Second

	// replayTTL is longer than any run.
	replayTTL = time.Hour
)

// BenchmarkHTTPFresh sends every request with a new key, over 64 connections that are kept alive. The
// handler alone is in it too: what the middleware leaves of its throughput is the ratio of the two.
func BenchmarkHTTPFresh(b *testing.B) {
	for _, subject := range subjects {
		s := subject.start(b, freshTTL)
		clients := dialAll(b, s.listen(b))
		sent := 0
		b.Run(subject.name, func(b *testing.B) {
			first := sent
			postAll(b, clients, func(i int) int { return first + i })
			sent += b.N
			require.EqualValues(b, sent, s.runs())
		})
		closeAll(b, clients, s)
	}
}

// BenchmarkHTTPReplay sends requests that were answered before. The handler alone is called every time.
func BenchmarkHTTPReplay(b *testing.B) {
	for _, subject := range subjects {
		s := subject.start(b, replayTTL)
		clients := dialAll(b, s.listen(b))
		for i := range replayed {
			require.NoError(b, clients[0].post(i))
		}
		sent := replayed
		b.Run(subject.name, func(b *testing.B) {
			postAll(b, clients, func(i int) int { return i % replayed })
			sent += b.N
			require.EqualValues(b, wantRuns(subject.guarded, sent), s.runs())
		})
		closeAll(b, clients, s)
	}
}

// BenchmarkCallFresh is BenchmarkHTTPFresh in process, by one goroutine: middleware, router and handler
// without connections.
func BenchmarkCallFresh(b *testing.B) {
	for _, subject := range subjects {
		s := subject.start(b, freshTTL)
		key, sent := newKey(), 0
		b.Run(subject.name, func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				setKey(key, sent)
				call(b, s, key)
				sent++
			}
			reportCPU(b, start)
			require.EqualValues(b, sent, s.runs())
		})
		s.close(b)
	}
}

// BenchmarkCallReplay is BenchmarkHTTPReplay in process, by one goroutine.
func BenchmarkCallReplay(b *testing.B) {
	for _, subject := range subjects {
		s := subject.start(b, replayTTL)
		key, sent := newKey(), replayed
		for i := range replayed {
			setKey(key, i)
			call(b, s, key)
		}
		b.Run(subject.name, func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				setKey(key, sent%replayed)
				call(b, s, key)
				sent++
			}
			reportCPU(b, start)
			require.EqualValues(b, wantRuns(subject.guarded, sent), s.runs())
		})
		s.close(b)
	}
}

// wantRuns is how often the handler runs for so many requests with the replayed keys.
func wantRuns(guarded bool, sent int) int {
	if guarded {
		return replayed
	}
	return sent
}

func call(b *testing.B, s service, key []byte) {
	status, body := s.call(key)
	if err := checkAnswer(key, status, body); err != nil {
		b.Fatal(err)
	}
}

func dialAll(b *testing.B, address string) []*client {
	clients := make([]*client, connections)
	for i := range clients {
		clients[i] = dial(b, address)
	}
	return clients
}

func closeAll(b *testing.B, clients []*client, s service) {
	for _, c := range clients {
		c.close()
	}
	s.close(b)
}

// postAll sends b.N requests; number(i) is the number of the i-th one's key.
func postAll(b *testing.B, clients []*client, number func(i int) int) {
	var next atomic.Int64
	var group sync.WaitGroup
	start := cpuTime()
	b.ResetTimer()
	for _, c := range clients {
		group.Go(func() {
			for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
				if err := c.post(number(i - 1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
	reportCPU(b, start)
}

// reportCPU reports the processor time per operation since start, the garbage collector's included and, over
// HTTP, the client's. Unlike the time that passed it hardly depends on what else the machine is doing.
func reportCPU(b *testing.B, start time.Duration) {
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
}
