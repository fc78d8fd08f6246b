package idem_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/stretchr/testify/require"
)

// The baseline that every benchmark compares itself with in the same run is what one writes first: one mutex
// around a map from scope and key to a pointer. It answers the same calls and keeps states, tokens and deadlines,
// but knows no waiters, no limits and no late Complete, and is told when to expire what is over.
type baseline struct {
	mu      sync.Mutex
	records map[baseKey]*baseRecord
	token   uint64
	queue   []*baseRecord // by deadline, as all TTLs in a benchmark are equal
	head    int
}

type baseKey struct{ scope, key string }

type baseRecord struct {
	key      baseKey
	fp       idem.Fingerprint
	token    uint64
	done     bool
	deadline time.Time
	response idem.Response
}

func newBaseline() *baseline { return &baseline{records: map[baseKey]*baseRecord{}} }

func (m *baseline) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return idem.Outcome{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, key := time.Now(), baseKey{req.Scope, req.Key}
	r := m.records[key]
	switch {
	case r == nil || !now.Before(r.deadline):
		m.token++
		key = baseKey{strings.Clone(req.Scope), strings.Clone(req.Key)} // the caller's memory is not ours
		m.records[key] = &baseRecord{key: key, fp: req.Fingerprint, token: m.token, deadline: now.Add(30 * time.Second)}
		return idem.Outcome{State: idem.Fresh, Claim: idem.Claim{
			Scope: req.Scope, Key: req.Key, Token: m.token, Fingerprint: req.Fingerprint,
		}}, nil
	case r.fp != req.Fingerprint:
		return idem.Outcome{State: idem.Mismatch}, nil
	case !r.done:
		return idem.Outcome{State: idem.InProgress, Remaining: r.deadline.Sub(now)}, nil
	default:
		out := idem.Outcome{State: idem.Replay, Response: r.response}
		req.Buf = append(req.Buf[:0], r.response.Body...)
		out.Response.Body = req.Buf
		return out, nil
	}
}

func (m *baseline) Complete(_ context.Context, c idem.Claim, resp idem.Response) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[baseKey{c.Scope, c.Key}]
	if r == nil || r.token != c.Token {
		return idem.ErrClaimLost
	}
	now := time.Now()
	r.done, r.deadline, r.response = true, now.Add(resp.TTL), resp
	r.response.StoredAt = now
	r.response.Body = append([]byte(nil), resp.Body...)
	m.queue = append(m.queue, r)
	return nil
}

// expire drops what is over.
func (m *baseline) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for now := time.Now(); m.head < len(m.queue) && !now.Before(m.queue[m.head].deadline); m.head++ {
		if r := m.queue[m.head]; m.records[r.key] == r {
			delete(m.records, r.key)
		}
		m.queue[m.head] = nil
	}
	if m.head > len(m.queue)/2 {
		m.queue = append([]*baseRecord(nil), m.queue[m.head:]...)
		m.head = 0
	}
}

// A beginner is what the benchmarks need of a store, the baseline or the engine.
type beginner interface {
	Begin(context.Context, idem.Request) (idem.Outcome, error)
	Complete(context.Context, idem.Claim, idem.Response) error
}

const bodyBytes = 200

var (
	benchBody = make([]byte, bodyBytes)
	benchFP   = idem.FingerprintOf([]byte("payment"))
)

// keySet is a number of distinct keys of 36 bytes, the length of a UUID, in one piece of memory: a slice of strings
// would cost a cache miss for each key and give the garbage collector work.
type keySet string

func benchKeys(n int) keySet {
	all := make([]byte, 0, 36*n)
	for i := range n {
		all = fmt.Appendf(all, "%08x-%04x-4000-8000-%012x", uint32(i)*2654435761, i&0xffff, i)
	}
	return keySet(all)
}

func (k keySet) len() int                 { return len(k) / 36 }
func (k keySet) at(i int) string          { return string(k[36*i : 36*i+36]) }
func (k keySet) part(from, to int) keySet { return k[36*from : 36*to] }

func benchEngine(tb testing.TB, cfg idem.Config) *idem.Engine {
	e, err := idem.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, e.Close()) })
	return e
}

// cycle runs one operation that must be fresh.
func cycle(tb testing.TB, store beginner, key string, ttl time.Duration) {
	out, err := store.Begin(context.Background(), idem.Request{Key: key, Fingerprint: benchFP})
	if err != nil || out.State != idem.Fresh {
		tb.Fatalf("begin %q: %v, %v", key, out.State, err)
	}
	err = store.Complete(context.Background(), out.Claim, idem.Response{Status: 201, Body: benchBody, TTL: ttl})
	if err != nil {
		tb.Fatalf("complete %q: %v", key, err)
	}
}

func fill(tb testing.TB, store beginner, keys keySet) {
	for i := range keys.len() {
		cycle(tb, store, keys.at(i), 24*time.Hour)
	}
}

// replayer returns a function that replays a key, for one goroutine.
func replayer(tb testing.TB, store beginner) func(key string) {
	buf := make([]byte, 0, 1024)
	return func(key string) {
		out, err := store.Begin(context.Background(), idem.Request{Key: key, Fingerprint: benchFP, Buf: buf})
		if err != nil || out.State != idem.Replay || len(out.Response.Body) != bodyBytes {
			tb.Fatalf("replay %q: %v, %v", key, out.State, err)
		}
	}
}

// compare runs f on the baseline and on an engine, one after the other. The baseline's expire is called as often
// as the engine's sweeper would come by.
func compare(b *testing.B, f func(b *testing.B, store beginner)) {
	b.Run("store=baseline", func(b *testing.B) {
		m := newBaseline()
		stop := every(10*time.Millisecond, m.expire)
		defer stop()
		f(b, m)
	})
	runtime.GC()
	b.Run("store=engine", func(b *testing.B) { f(b, benchEngine(b, idem.Config{})) })
	runtime.GC()
}

// spread runs b.N calls of what worker returns on so many goroutines.
func spread(b *testing.B, goroutines int, worker func(id int) func()) {
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for id := range goroutines {
		n := b.N / goroutines
		if id == 0 {
			n += b.N % goroutines
		}
		wg.Go(func() {
			f := worker(id)
			for range n {
				f()
			}
		})
	}
	wg.Wait()
}

// sizes leaves all but the first one out with -short, when it matters only that a benchmark runs.
func sizes(all ...int) []int {
	if testing.Short() {
		return all[:1]
	}
	return all
}

// scaled is a tenth of n with -short.
func scaled(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// BenchmarkReplay replays random ones of 10k, 1M and 5M live keys.
func BenchmarkReplay(b *testing.B) {
	for _, live := range sizes(10_000, 1_000_000, 5_000_000) {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			keys := benchKeys(live)
			compare(b, func(b *testing.B, store beginner) {
				fill(b, store, keys)
				benchReplay(b, store, keys)
			})
		})
	}
}

// BenchmarkHotKey replays one key.
func BenchmarkHotKey(b *testing.B) {
	key := benchKeys(1)
	compare(b, func(b *testing.B, store beginner) {
		fill(b, store, key)
		benchReplay(b, store, key)
	})
}

func benchReplay(b *testing.B, store beginner, keys keySet) {
	for _, g := range []int{1, 2, 32} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			runtime.GC()
			spread(b, g, func(id int) func() {
				replay, rnd := replayer(b, store), rand.New(rand.NewPCG(uint64(id), 1))
				return func() { replay(keys.at(rnd.IntN(keys.len()))) }
			})
		})
	}
}

// churnTTL is how long the records of a fresh cycle live: so short that a benchmark reaches the steady state, in
// which as many expire as come.
const churnTTL = 500 * time.Millisecond

// BenchmarkFreshCycle is Begin, Complete and the expiry of what was completed before, beside a million records
// that stay.
func BenchmarkFreshCycle(b *testing.B) {
	keys := benchKeys(5_000_000)
	live, churn := keys.part(0, scaled(1_000_000)), keys.part(1_000_000, 5_000_000)
	for _, g := range []int{1, 2} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			compare(b, func(b *testing.B, store beginner) {
				fill(b, store, live)
				forget(store)
				benchCycle(b, g, churn, func(key string) { cycle(b, store, key, churnTTL) })
			})
		})
	}
}

// forget spares the baseline the walk over records that stay.
func forget(store beginner) {
	if m, ok := store.(*baseline); ok {
		m.mu.Lock()
		m.queue, m.head = nil, 0
		m.mu.Unlock()
	}
}

// benchCycle warms up until records expire as fast as they come. Each goroutine walks through its part of the
// keys, which are so many that one has expired when its turn comes again.
func benchCycle(b *testing.B, g int, keys keySet, run func(key string)) {
	next := make([]int, g)
	part := keys.len() / g
	step := func(id int) {
		run(keys.at(id*part + next[id]))
		next[id] = (next[id] + 1) % part
	}
	var wg sync.WaitGroup
	for id := range g {
		wg.Go(func() {
			for start := time.Now(); time.Since(start) < 2*churnTTL; {
				for range 1000 {
					step(id)
				}
			}
		})
	}
	wg.Wait()
	spread(b, g, func(id int) func() { return func() { step(id) } })
}

// every calls f in the background until stop is called.
func every(d time.Duration, f func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// BenchmarkZipf is nine replays to one fresh cycle, the replays Zipf-distributed over a million live keys.
func BenchmarkZipf(b *testing.B) {
	keys := benchKeys(5_000_000)
	live, churn := keys.part(0, scaled(1_000_000)), keys.part(1_000_000, 5_000_000)
	for _, g := range []int{1, 2} {
		b.Run(fmt.Sprintf("goroutines=%d", g), func(b *testing.B) {
			compare(b, func(b *testing.B, store beginner) {
				fill(b, store, live)
				forget(store)
				benchZipf(b, g, store, live, churn)
			})
		})
	}
}

func benchZipf(b *testing.B, g int, store beginner, live, churn keySet) {
	part := churn.len() / g
	next := make([]int, g)
	spread(b, g, func(id int) func() {
		zipf := rand.NewZipf(rand.New(rand.NewPCG(uint64(id), 2)), 1.01, 1, uint64(live.len()-1))
		replay, n := replayer(b, store), 0
		return func() {
			if n++; n%10 == 0 {
				cycle(b, store, churn.at(id*part+next[id]), churnTTL)
				next[id] = (next[id] + 1) % part
				return
			}
			replay(live.at(int(zipf.Uint64())))
		}
	})
}
