package redisstore_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// What the store is measured against: scripts that write and read as many bytes and know nothing of owners.
const (
	rawBegin    = `redis.call('HSET', KEYS[1], 'm', ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 'F'`
	rawComplete = `redis.call('HSET', KEYS[1], 'm', ARGV[1], 'b', ARGV[2]) redis.call('PEXPIRE', KEYS[1], ARGV[3]) return 'K'`
	rawReplay   = `return redis.call('HMGET', KEYS[1], 'm', 'b')`
)

var (
	claimBytes    = strings.Repeat("c", 57)
	responseBytes = strings.Repeat("r", 309)
	body          = []byte(strings.Repeat("b", 300))
)

// A side is one of two things that a benchmark compares.
type side struct {
	do   func(i int) error
	n    int
	took time.Duration
}

// run calls do so many times from so many goroutines.
func (s *side) run(b *testing.B, calls, goroutines int) {
	b.Helper()
	last, next := int64(s.n+calls), atomic.Int64{}
	next.Store(int64(s.n))
	errs := make(chan error, goroutines)
	from := time.Now()
	for range goroutines {
		go func() {
			var err error
			for i := next.Add(1); i <= last && err == nil; i = next.Add(1) {
				err = s.do(int(i))
			}
			errs <- err
		}()
	}
	for range goroutines {
		require.NoError(b, <-errs)
	}
	s.took += time.Since(from)
	s.n += calls
}

func (s *side) rate() float64 { return float64(s.n) / s.took.Seconds() }

// compare has both sides take turns of some milliseconds, so that what else the machine does falls on both, and
// reports how often a second each does what it does, and the store as percents of raw.
func compare(b *testing.B, goroutines int, raw, store func(i int) error) {
	b.Helper()
	raws, stores := &side{do: raw}, &side{do: store}
	for b.Loop() {
		raws.run(b, 512, goroutines)
		stores.run(b, 512, goroutines)
	}
	b.ReportMetric(raws.rate(), "raw/s")
	b.ReportMetric(stores.rate(), "store/s")
	b.ReportMetric(100*stores.rate()/raws.rate(), "%raw")
}

// A raw is a client that runs scripts without a store.
type raw struct {
	*redis.Client
	shas map[string]string
}

func newRaw(b *testing.B, c *redis.Client) raw {
	b.Helper()
	r := raw{c, map[string]string{}}
	for _, script := range []string{rawBegin, rawComplete, rawReplay} {
		sum := sha1.Sum([]byte(script))
		r.shas[script] = hex.EncodeToString(sum[:])
		require.NoError(b, c.ScriptLoad(b.Context(), script).Err())
	}
	return r
}

func (r raw) run(ctx context.Context, script, key string, args ...any) error {
	return r.EvalSha(ctx, r.shas[script], []string{key}, args...).Err()
}

// startHeeding starts a server and returns a client that heeds deadlines itself, as the README advises.
func startHeeding(b *testing.B) *redis.Client {
	b.Helper()
	server, _ := start(b)
	return client(b, &redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
}

// BenchmarkCycle is Begin and Complete of a new key with a response of 300 bytes.
func BenchmarkCycle(b *testing.B) {
	c := startHeeding(b)
	for _, n := range []int{1, 16, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			raw, p, ctx := newRaw(b, c), prefix(), b.Context()
			s := open(b, c, redisstore.Config{TTL: time.Minute})
			compare(b, n, func(i int) error {
				key := name(p, strconv.Itoa(i))
				if err := raw.run(ctx, rawBegin, key, claimBytes, 30_000); err != nil {
					return err
				}
				return raw.run(ctx, rawComplete, key, claimBytes, responseBytes, 60_000)
			}, func(i int) error { return cycle(ctx, s, strconv.Itoa(i)) })
		})
	}
}

func cycle(ctx context.Context, s *redisstore.Store, key string) error {
	out, err := s.Begin(ctx, request(key))
	if err != nil {
		return err
	}
	if out.State != idem.Fresh {
		return fmt.Errorf("%s is %v", key, out.State)
	}
	return s.Complete(ctx, out.Claim, idem.Response{Status: 200, Body: body})
}

// BenchmarkReplay is Begin of a key that is done, into a buffer, beside a script that reads a hash of the same size.
func BenchmarkReplay(b *testing.B) {
	const keys = 1000
	c := startHeeding(b)
	p := prefix()
	s, raw := open(b, c, redisstore.Config{Prefix: p}), newRaw(b, c)
	hash := func(i int) string { return name(p+"h", strconv.Itoa(i%keys)) }
	for i := range keys {
		require.NoError(b, cycle(b.Context(), s, strconv.Itoa(i)))
		require.NoError(b, raw.run(b.Context(), rawComplete, hash(i), claimBytes, responseBytes, 86_400_000))
	}
	for _, n := range []int{1, 16, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ctx := b.Context()
			compare(b, n, func(i int) error {
				return raw.run(ctx, rawReplay, hash(i))
			}, func(i int) error {
				var buf [512]byte
				req := request(strconv.Itoa(i % keys))
				req.Buf = buf[:]
				out, err := s.Begin(ctx, req)
				if err == nil && (out.State != idem.Replay || len(out.Response.Body) != len(body)) {
					err = fmt.Errorf("%s is %v", req.Key, out.State)
				}
				return err
			})
		})
	}
}

// BenchmarkWake is how long after Complete has been called a caller in another process has the response. The stores
// stand for processes: they share nothing but the server.
func BenchmarkWake(b *testing.B) {
	server, c := start(b)
	cfg := redisstore.Config{Prefix: prefix()}
	stores := fleet(b, 2, server.Addr, cfg)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		key := strconv.Itoa(i)
		claim := fresh(b, stores[0], request(key))
		waits := begin(b.Context(), stores[1], waiting(request(key)))
		registered(b, c, name(cfg.Prefix, key), 1)
		from := time.Now()
		require.NoError(b, stores[0].Complete(b.Context(), claim, idem.Response{Status: 200, Body: body}))
		a := receive(b, waits)
		require.Equal(b, idem.Replay, a.out.State)
		took = append(took, a.at.Sub(from))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
