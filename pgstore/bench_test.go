package pgstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// Both sides of a comparison take turns within one benchmark, a block of operations each, since this machine's speed
// changes from one second to the next. The figure to look at is %raw, the speed in percent of the raw statements'.

// rawInsert and rawUpdate write the row that the store writes, without asking whether they may.
const (
	rawInsert = `INSERT INTO bench.raw (scope, key, fingerprint, nonce, state, token, created_at, lease_until, expires_at, bucket)
		VALUES ($1, $2, $3, $4, 'processing', $5, clock_timestamp(), clock_timestamp() + interval '30 s', clock_timestamp() + interval '30 s', $6)`
	rawUpdate = `UPDATE bench.raw SET state = 'completed', status = $3, header = $4, body = $5, completed_at = clock_timestamp(),
		expires_at = clock_timestamp() + interval '1 day' WHERE scope = $1 AND key = $2`
	rawSelect = `SELECT state, status, header, body, completed_at FROM bench.raw WHERE scope = $1 AND key = $2`
)

var (
	benchHeader = make([]byte, 60)
	benchBody   = make([]byte, 240)
)

// A bench is a server that is as durable as one in production, with a table for the raw statements.
type bench struct {
	server *testserver.Postgres
	pool   *pgxpool.Pool
	keys   atomic.Int64
}

func newBench(b *testing.B, conns int) *bench {
	b.Helper()
	server, err := testserver.StartPostgres(testserver.PostgresConfig{Fsync: true})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, server.Close()) })
	pool := newPool(b, server.URL(), maxConns(int32(conns)))
	require.NoError(b, pgstore.Migrate(b.Context(), pool, "bench"))
	_, err = pool.Exec(b.Context(), `CREATE TABLE bench.raw (LIKE bench.records INCLUDING ALL) WITH (fillfactor = 70, vacuum_truncate = false);
		INSERT INTO bench.raw (scope, key, fingerprint, nonce, state, token, created_at, lease_until, expires_at, bucket)
		SELECT '', i::text, '', 0, 'free', 0, now(), now(), now(), 0 FROM generate_series(1, 2000) AS i;
		DELETE FROM bench.raw`)
	require.NoError(b, err)
	return &bench{server: server, pool: pool}
}

// key is a fresh key of 36 bytes, in no order.
func (s *bench) key() string {
	n := uint64(s.keys.Add(1))
	return fmt.Sprintf("%016x-%019d", n*0x9e3779b97f4a7c15, n)
}

func (s *bench) cycle(ctx context.Context, store *pgstore.Store) error {
	out, err := store.Begin(ctx, idem.Request{Scope: "bench", Key: s.key(), Lease: 30 * time.Second})
	if err != nil || out.State != idem.Fresh {
		return fmt.Errorf("%v, %w", out.State, err)
	}
	return store.Complete(ctx, out.Claim, idem.Response{Status: 201, Header: benchHeader, Body: benchBody})
}

func (s *bench) rawCycle(ctx context.Context) error {
	key := s.key()
	if _, err := s.pool.Exec(ctx, rawInsert, "bench", key, make([]byte, 16), int64(1), s.keys.Load(), int32(500000)); err != nil {
		return err
	}
	tag, err := s.pool.Exec(ctx, rawUpdate, "bench", key, int32(201), benchHeader, benchBody)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows updated", tag.RowsAffected())
	}
	return err
}

// block runs op n times by each of so many goroutines, and returns how long that took.
func block(b *testing.B, goroutines, n int, op func(context.Context) error) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context()) // as a request's: one that can be cancelled
	defer cancel()
	errs := make([]error, goroutines)
	start := time.Now()
	var done sync.WaitGroup
	for g := range goroutines {
		done.Go(func() {
			for i := 0; i < n && errs[g] == nil; i++ {
				errs[g] = op(ctx)
			}
		})
	}
	done.Wait()
	took := time.Since(start)
	for _, err := range errs {
		require.NoError(b, err)
	}
	return took
}

// compare reports what ours does in a second, in percent of what raw does.
func compare(b *testing.B, goroutines int, ours, raw func(context.Context) error) {
	b.Helper()
	per := max(20, 100/goroutines)
	block(b, goroutines, per, ours) // statements are prepared, plans made, files grown
	block(b, goroutines, per, raw)
	var oursTook, rawTook time.Duration
	ops := 0
	for b.Loop() {
		oursTook += block(b, goroutines, per, ours)
		rawTook += block(b, goroutines, per, raw)
		ops += per * goroutines
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(ops)/oursTook.Seconds(), "ours/s")
	b.ReportMetric(float64(ops)/rawTook.Seconds(), "raw/s")
	b.ReportMetric(100*rawTook.Seconds()/oursTook.Seconds(), "%raw")
}

func BenchmarkCycle(b *testing.B) {
	s := newBench(b, 64)
	store := newStore(b, s.pool, pgstore.Config{Schema: "bench"})
	for _, goroutines := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			compare(b, goroutines, func(ctx context.Context) error { return s.cycle(ctx, store) }, s.rawCycle)
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	s := newBench(b, 64)
	ctx := b.Context()
	store := newStore(b, s.pool, pgstore.Config{Schema: "bench"})
	const keys = 1000
	names := make([]string, keys)
	for i := range names {
		names[i] = s.key()
		out, err := store.Begin(ctx, idem.Request{Scope: "bench", Key: names[i]})
		require.NoError(b, err)
		require.NoError(b, store.Complete(ctx, out.Claim, idem.Response{Status: 201, Header: benchHeader, Body: benchBody}))
	}
	_, err := s.pool.Exec(ctx, `INSERT INTO bench.raw SELECT * FROM bench.records`)
	require.NoError(b, err)
	_, err = s.pool.Exec(ctx, `VACUUM ANALYZE`)
	require.NoError(b, err)
	for _, goroutines := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			compare(b, goroutines, func(ctx context.Context) error {
				out, err := store.Begin(ctx, idem.Request{Scope: "bench", Key: names[s.keys.Add(1)%keys]})
				if err == nil && (out.State != idem.Replay || len(out.Response.Body) != len(benchBody)) {
					err = fmt.Errorf("%v of %d bytes", out.State, len(out.Response.Body))
				}
				return err
			}, func(ctx context.Context) error {
				return rawReplay(ctx, s.pool, names[s.keys.Add(1)%keys])
			})
		})
	}
}

func rawReplay(ctx context.Context, pool *pgxpool.Pool, key string) error {
	var state string
	var status int32
	var header, body []byte
	var at pgtype.Timestamptz
	err := pool.QueryRow(ctx, rawSelect, "bench", key).Scan(&state, &status, &header, &body, &at)
	if err == nil && len(body) != len(benchBody) {
		err = fmt.Errorf("%d bytes", len(body))
	}
	return err
}

// BenchmarkHints has a caller wait in another process, so that every Complete is hinted at. %raw is the speed in
// percent of that of a store that sends no hints.
func BenchmarkHints(b *testing.B) {
	s := newBench(b, 64)
	hinting := newStore(b, s.pool, pgstore.Config{Schema: "bench"})
	silent := newStore(b, s.pool, pgstore.Config{Schema: "bench", PollOnly: true})
	other := newStore(b, newPool(b, s.server.URL()), pgstore.Config{Schema: "bench"})
	req := idem.Request{Scope: "bench", Key: s.key(), Lease: time.Hour}
	claim(b, other, req)
	req.Wait = true
	ctx, cancel := context.WithCancel(b.Context())
	answers := beginning(ctx, other, req)
	eventually(b, func() bool { return hinting.Listening() && other.Waiting() == 1 }, "one who waits")
	for _, goroutines := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			compare(b, goroutines, func(ctx context.Context) error { return s.cycle(ctx, hinting) },
				func(ctx context.Context) error { return s.cycle(ctx, silent) })
		})
	}
	cancel()
	<-answers
}

// BenchmarkWake is the time from Complete's return to that of a Begin that waits in another process. Beside it the
// owners of other keys complete them all the time, when load is on.
func BenchmarkWake(b *testing.B) {
	s := newBench(b, 16)
	owner := newStore(b, s.pool, pgstore.Config{Schema: "bench"})
	other := newStore(b, newPool(b, s.server.URL()), pgstore.Config{Schema: "bench"})
	eventually(b, func() bool { return owner.Listening() && other.Listening() }, "listening")
	for _, load := range []int{4, 0} {
		b.Run(fmt.Sprintf("beside %d", load), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			var done sync.WaitGroup
			for range load {
				done.Go(func() {
					for ctx.Err() == nil {
						_ = s.cycle(ctx, owner) // it may end with ctx
					}
				})
			}
			var took []time.Duration
			for b.Loop() {
				took = append(took, s.wake(b, owner, other))
			}
			cancel()
			done.Wait()
			slices.Sort(took)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}

func (s *bench) wake(b *testing.B, owner, other *pgstore.Store) time.Duration {
	b.Helper()
	req := idem.Request{Scope: "bench", Key: s.key(), Lease: time.Hour}
	c := claim(b, owner, req)
	req.Wait = true
	answers := make(chan time.Time, 1)
	go func() {
		if out, err := other.Begin(b.Context(), req); err == nil && out.State == idem.Replay {
			answers <- time.Now()
		}
	}()
	// By then it sleeps for a second at least, having looked for the second time.
	pause := time.NewTimer(60 * time.Millisecond)
	defer pause.Stop()
	<-pause.C
	require.NoError(b, owner.Complete(b.Context(), c, idem.Response{Status: 200, Body: benchBody}))
	start := time.Now()
	return (<-answers).Sub(start)
}
