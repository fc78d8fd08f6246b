package idem_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/stretchr/testify/require"
)

// What the engine costs beside an operation's time: memory, garbage collection, and how long the slowest wait.

// BenchmarkMemory reports what a live record costs on the heap, its key and body among it.
func BenchmarkMemory(b *testing.B) {
	for _, live := range sizes(1_000_000, 5_000_000) {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			keys := benchKeys(live)
			compare(b, func(b *testing.B, store beginner) {
				before := heapBytes()
				fill(b, store, keys)
				b.ReportMetric(float64(heapBytes()-before)/float64(live), "B/record")
				runtime.KeepAlive(store)
			})
		})
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkGC reports the processor time of one garbage collection with 5M live records.
func BenchmarkGC(b *testing.B) {
	keys := benchKeys(scaled(5_000_000))
	compare(b, func(b *testing.B, store beginner) {
		fill(b, store, keys)
		runtime.GC()
		before := gcSeconds()
		b.ResetTimer()
		for range b.N {
			runtime.GC()
		}
		b.ReportMetric(1e3*(gcSeconds()-before)/float64(b.N), "cpu-ms/op")
		runtime.KeepAlive(store)
	})
}

func gcSeconds() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
}

// BenchmarkTail reports the latency of a replay while a million records expire within a second, and while none do.
// One operation is a second of probing.
func BenchmarkTail(b *testing.B) {
	keys := benchKeys(1_100_000)
	stay, gone := keys.part(0, 100_000), keys.part(100_000, 100_000+scaled(1_000_000))
	for _, expiring := range []int{0, gone.len()} {
		b.Run(fmt.Sprintf("expiring=%d", expiring), func(b *testing.B) {
			took := slices.Repeat([]time.Duration{1}, 4_000_000)[:0] // fresh memory would show in the tail when first touched
			for range b.N {
				e, start := benchEngine(b, idem.Config{}), time.Now()
				fill(b, e, stay)
				end := time.Now().Add(time.Second + 20*time.Since(start)) // ten times as many are to be filled in
				for i := range expiring {
					cycle(b, e, gone.at(i), time.Until(end)+time.Duration(i)*time.Microsecond)
				}
				<-time.After(time.Until(end)) // a million are due from here on
				took = probe(took, replayer(b, e), stay, end.Add(time.Second))
				require.Eventually(b, func() bool { return e.Len() == stay.len() }, 10*time.Second, time.Millisecond)
			}
			slices.Sort(took)
			for _, p := range []struct {
				name  string
				share float64
			}{{"p50-ns", 0.5}, {"p99.9-ns", 0.999}, {"p99.99-ns", 0.9999}} {
				b.ReportMetric(float64(took[int(p.share*float64(len(took)))]), p.name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func probe(took []time.Duration, replay func(string), keys keySet, end time.Time) []time.Duration {
	rnd := rand.New(rand.NewPCG(1, 3))
	for start := time.Now(); start.Before(end); {
		replay(keys.at(rnd.IntN(keys.len())))
		now := time.Now()
		took = append(took, now.Sub(start))
		start = now
	}
	return took
}

// BenchmarkWake reports the median time from Complete until a waiting duplicate has the response, beside that from
// closing a channel until a goroutine that waits for it goes on. The owner goes on working meanwhile, as a server
// does, so that the other one is woken on another processor.
func BenchmarkWake(b *testing.B) {
	b.Run("bare=channel", func(b *testing.B) {
		benchWake(b, func() (wait, wake func()) {
			ch := make(chan struct{})
			return func() { <-ch }, func() { close(ch) }
		})
	})
	b.Run("store=engine", func(b *testing.B) {
		e, n := benchEngine(b, idem.Config{TTL: time.Minute}), 0
		benchWake(b, func() (wait, wake func()) {
			n++
			req := idem.Request{Key: fmt.Sprint("wake", n), Wait: true, Buf: make([]byte, 0, 256)}
			owner, err := e.Begin(context.Background(), req)
			require.NoError(b, err)
			wait = func() {
				if out, err := e.Begin(context.Background(), req); err != nil || out.State != idem.Replay {
					b.Errorf("waiter: %v, %v", out.State, err)
				}
			}
			return wait, func() { _ = e.Complete(context.Background(), owner.Claim, idem.Response{Body: benchBody}) }
		})
	})
}

func benchWake(b *testing.B, round func() (wait, wake func())) {
	var took []time.Duration
	for range b.N {
		wait, wake := round()
		var ended atomic.Int64
		start := time.Now()
		go func() {
			wait()
			ended.Store(int64(time.Since(start)))
		}()
		for time.Since(start) < 50*time.Microsecond { // it waits by then: nothing tells from outside
			runtime.Gosched()
		}
		from := time.Since(start)
		wake()
		for ended.Load() == 0 {
		}
		took = append(took, time.Duration(ended.Load())-from)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "wake-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkSnapshot writes the records of an engine to a file, and restores them into another one.
func BenchmarkSnapshot(b *testing.B) {
	live := scaled(1_000_000)
	e, file := benchEngine(b, idem.Config{}), filepath.Join(b.TempDir(), "snapshot")
	fill(b, e, benchKeys(live))
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, e.SnapshotFile(file))
		}
		info, err := os.Stat(file)
		require.NoError(b, err)
		b.ReportMetric(float64(info.Size())/float64(live), "B/record")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*live), "ns/record")
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			next := benchEngine(b, idem.Config{})
			require.NoError(b, next.RestoreFile(file))
			require.Equal(b, live, next.Len())
			require.NoError(b, next.Close())
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*live), "ns/record")
	})
}
