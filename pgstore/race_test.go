package pgstore_test

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/crowd"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// fleet returns stores with a pool each, as many processes would have them.
func fleet(tb testing.TB, n int, cfg pgstore.Config, options ...poolOption) []*pgstore.Store {
	tb.Helper()
	stores := make([]*pgstore.Store, n)
	for i := range stores {
		stores[i] = newStore(tb, newPool(tb, databaseURL, options...), cfg)
	}
	return stores
}

// Sixteen callers over four stores begin the same thousand keys at the same time.
func TestHeavyRacersOfAThousandKeys(t *testing.T) {
	const racers, keys = 16, 1000
	stores := fleet(t, 4, pgstore.Config{PollOnly: true}, maxConns(4))
	scope := request().Key
	var owners [keys]atomic.Int32
	var all errgroup.Group
	for racer := range racers {
		all.Go(func() error {
			for key := range keys {
				out, err := stores[racer%len(stores)].Begin(t.Context(), idem.Request{Scope: scope, Key: fmt.Sprint(key)})
				if err != nil {
					return err
				}
				if out.State == idem.Fresh {
					owners[key].Add(1)
				} else if out.State != idem.InProgress {
					return fmt.Errorf("key %d is %v", key, out.State)
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for key := range owners {
		require.EqualValues(t, 1, owners[key].Load(), "owners of key %d", key)
	}
}

// A counter counts statements, and sees what they were given.
type counter struct {
	n     atomic.Int64
	times atomic.Int64 // arguments that tell a time of day
	notes atomic.Int64 // statements that notify
	looks atomic.Int64 // statements of Begin that look at a key
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	if strings.Contains(data.SQL, "pg_notify") {
		c.notes.Add(1)
	}
	if strings.Contains(data.SQL, "nonce <>") {
		c.looks.Add(1)
	}
	for _, arg := range data.Args {
		if reflect.TypeOf(arg) == reflect.TypeFor[time.Time]() {
			c.times.Add(1)
		}
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) option() poolOption {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = c }
}

// openMember opens the store of a process whose callers wait, and counts its statements.
func openMember(job crowd.Job) (crowd.Member, error) {
	var counted counter
	pool, err := openPool(job.URL, counted.option())
	if err != nil {
		return crowd.Member{}, err
	}
	store, err := pgstore.New(pool, pgstore.Config{Schema: job.Space, MaxWaitersPerKey: job.Callers})
	if err != nil {
		return crowd.Member{}, err
	}
	waiting := func() int {
		if !store.Listening() {
			return 0
		}
		return store.Waiting()
	}
	return crowd.Member{Store: store, Waiting: waiting, Calls: counted.n.Load}, nil
}

// Ten thousand duplicates of one key, in four processes, must not be ten thousand statements.
func TestTenThousandWaitersInFourProcesses(t *testing.T) {
	const callers, processes = 10_000, 4
	owner := newStore(t, newPool(t, databaseURL), pgstore.Config{})
	req := request()
	c, began := claim(t, owner, req), time.Now()
	req.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiters, err := crowd.Start(ctx, crowd.Job{
		URL: databaseURL, Space: schema, Request: req, Callers: callers / processes,
	}, processes)
	require.NoError(t, err)
	require.NoError(t, owner.Complete(t.Context(), c, text("done")))
	got, err := waiters.Wait()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"replay done": callers}, got.Answers)
	// Each process looks when the first comes, when it is listening, 25 ms later, after the hint, and now and then if
	// that takes long; it may look twice where callers came while it looked. It says each second that it waits.
	bound := processes * (12 + 3*int64(time.Since(began)/time.Second))
	require.LessOrEqual(t, got.Calls, bound, "statements")
	t.Logf("%d statements for %d callers", got.Calls, callers)
}

// By construction no clock but the server's has a say: what statements are given are durations.
func TestNoTimeOfDayIsSent(t *testing.T) {
	var counted counter
	store := fleet(t, 1, pgstore.Config{}, counted.option())[0]
	req := request()
	c := claim(t, store, req)
	require.NoError(t, store.Extend(t.Context(), c, time.Minute))
	require.NoError(t, store.Abandon(t.Context(), c))
	require.NoError(t, store.Complete(t.Context(), c, text("done")))
	_, found, err := store.Lookup(t.Context(), req.Scope, req.Key)
	require.NoError(t, err)
	require.True(t, found)
	found, err = store.Forget(t.Context(), req.Scope, req.Key)
	require.NoError(t, err)
	require.True(t, found)
	claim(t, store, req)
	require.NoError(t, store.Resolve(t.Context(), req.Scope, req.Key, text("resolved")))
	_, err = store.Clean(t.Context())
	require.NoError(t, err)
	require.Greater(t, counted.n.Load(), int64(8))
	require.Zero(t, counted.times.Load())
}

// Close ends what New and Begin have started, also when it comes while callers wait.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	pool := newPool(t, databaseURL)
	owner := newStore(t, pool, pgstore.Config{PollOnly: true})
	for range 20 {
		store, err := pgstore.New(pool, pgstore.Config{Schema: schema})
		require.NoError(t, err)
		stop := store.StartCleaner(time.Hour)
		req := request()
		claim(t, owner, req)
		req.Wait = true
		answers := beginning(t.Context(), store, req)
		eventually(t, func() bool { return store.Waiting() == 1 }, "one who waits")
		require.NoError(t, store.Close())
		require.ErrorIs(t, (<-answers).err, idem.ErrClosed)
		_, err = store.Clean(t.Context())
		require.ErrorIs(t, err, idem.ErrClosed)
		stop()
	}
	// pgx closes a connection that is interrupted in the background.
	eventually(t, func() bool {
		return !strings.Contains(stacks(), "pgstore.(*") && !strings.Contains(stacks(), "pgxlisten")
	},
		"goroutines that have ended")
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// Two stores with different policies on one table: the one that granted the claim decides what its end means.
func TestThePolicyIsTheClaims(t *testing.T) {
	pool := newPool(t, databaseURL)
	hold := newStore(t, pool, pgstore.Config{OnLeaseExpiry: idem.Hold, PollOnly: true})
	takeOver := newStore(t, pool, pgstore.Config{PollOnly: true})
	held, taken := request(), request()
	held.Lease, taken.Lease = time.Microsecond, time.Microsecond
	claim(t, hold, held)
	claim(t, takeOver, taken)
	begin(t, takeOver, held, idem.Unknown)
	begin(t, hold, taken, idem.Fresh)
}
