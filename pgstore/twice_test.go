package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// An effect is committed once, whatever comes twice.

// A transaction that was committed, and whose caller could not be told, is run again.
func TestCommitWhoseReplyIsLost(t *testing.T) {
	s := newShop(t)
	proxy, through := proxied(t)
	pool := newPool(t, databaseURL, through)
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	req, runs := request(), 0
	resp, err := idem.Do(t.Context(), store, req, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
		for {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				runs++
				s.charge(tx, c)
				if err := store.CompleteTx(ctx, tx, c, text("charged")); err != nil {
					return err
				}
				if runs == 1 {
					proxy.DropRepliesTo("commit", 1)
				}
				return nil
			})
			if err == nil || errors.Is(err, pgstore.ErrCompleted) || runs == 3 {
				return text("charged"), nil
			}
		}
	})
	require.NoError(t, err)
	require.Equal(t, "charged", string(resp.Body))
	require.Equal(t, 2, runs)
	s.charged(1, req.Key)
}

// A claim is handed to a worker by a queue that delivers it twice.
func TestTwoWorkersWithOneClaim(t *testing.T) {
	s := newShop(t)
	req := request()
	c := claim(t, s.store, req)
	first, second := s.begin(), s.begin()
	s.charge(first, c)
	s.charge(second, c)
	require.NoError(t, s.store.CompleteTx(t.Context(), first, c, text("first")))
	answer := make(chan error, 1)
	go func() { answer <- s.store.CompleteTx(t.Context(), second, c, text("second")) }()
	blocked(t, s.pool, schema)
	require.NoError(t, first.Commit(t.Context()))
	err := <-answer
	require.ErrorIs(t, err, pgstore.ErrCompleted)
	require.ErrorIs(t, err, idem.ErrClaimLost)
	require.NoError(t, second.Rollback(t.Context()))
	s.charged(1, req.Key)
}

// To a transaction that looks at an old state the claim still seems completed, when somebody else has the key.
func TestCompleteTxOfAnOldSnapshot(t *testing.T) {
	s := newShop(t, isolation("repeatable read"))
	req := request()
	c := claim(t, s.store, req)
	require.NoError(t, s.store.Complete(t.Context(), c, text("done")))
	tx := s.begin()
	s.usable(tx)
	_, err := s.store.Forget(t.Context(), req.Scope, req.Key)
	require.NoError(t, err)
	claim(t, s.store, req)
	require.Error(t, s.store.CompleteTx(t.Context(), tx, c, text("done")))
}

// A cutConn is a connection whose line goes dead before the last message of a reply, when it is armed.
type cutConn struct {
	net.Conn
	armed *atomic.Bool
}

func (c cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 6 && c.armed.Load() && bytes.HasPrefix(b[n-6:n], []byte("Z\x00\x00\x00\x05")) {
		return n - 6, err
	}
	return n, err
}

// A deadline counts until Begin has returned, also when the answer is there and its end is not.
func TestBeginWhoseReplyDoesNotEnd(t *testing.T) {
	var armed atomic.Bool
	direct := newStore(t, newPool(t, databaseURL), pgstore.Config{PollOnly: true})
	store := newStore(t, newPool(t, databaseURL, maxConns(1), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return cutConn{conn, &armed}, err
		}
	}), pgstore.Config{PollOnly: true})
	req := request()
	claim(t, direct, req)
	for range 30 { // so that the store expects to find the key
		begin(t, store, req, idem.InProgress)
	}
	armed.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := store.Begin(ctx, req)
		answer <- err
	}()
	select {
	case err := <-answer:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		require.Fail(t, "Begin does not heed its context")
	}
	armed.Store(false)
}

// Whatever a server ends a session for, a statement that finds it ended is sent again.
func TestSessionThatTheServerHasEnded(t *testing.T) {
	idle := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["idle_session_timeout"] = "200ms" }
	store := newStore(t, newPool(t, databaseURL, idle), pgstore.Config{PollOnly: true})
	claim(t, store, request())
	time.Sleep(500 * time.Millisecond)
	claim(t, store, request())
}

// A server that restarts, or an operator, ends all connections, also those that are idle in the pool.
func TestConnectionsThatDieTogether(t *testing.T) {
	pool := newPool(t, databaseURL, maxConns(16), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "together"
	})
	admin := newPool(t, databaseURL)
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	c := claim(t, store, request())
	conns := make([]*pgxpool.Conn, 16)
	for i := range conns {
		var err error
		conns[i], err = pool.Acquire(t.Context())
		require.NoError(t, err)
	}
	for _, conn := range conns {
		conn.Release()
	}
	_, err := admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'together'")
	require.NoError(t, err)
	require.NoError(t, store.Complete(t.Context(), c, text("done")))
}

// A queryHook is called before each statement.
type queryHook func(sql string)

func (h queryHook) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	h(d.SQL)
	return ctx
}

func (queryHook) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A server comes to a Begin late, when its caller has been told by a second copy that the key is another's.
func TestLateCopyOfBeginClaimsForNobody(t *testing.T) {
	proxy, through := proxied(t)
	admin := newPool(t, databaseURL)
	direct := newStore(t, admin, pgstore.Config{PollOnly: true})
	var armed atomic.Bool
	pid, stopped := 0, make(chan struct{}, 1)
	store := newStore(t, newPool(t, databaseURL, through, maxConns(2), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "late"
		c.ConnConfig.Tracer = queryHook(func(sql string) {
			if strings.Contains(sql, "claim_1") && armed.CompareAndSwap(true, false) {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				stopped <- struct{}{}
			}
		})
	}), pgstore.Config{PollOnly: true})
	req := request()
	for range 3 { // the statements are prepared, and the key is known
		require.NoError(t, store.Abandon(t.Context(), claim(t, store, req)))
	}
	require.NoError(t, admin.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'late'").Scan(&pid))
	armed.Store(true)
	answers := beginning(t.Context(), store, req)
	<-stopped
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	owner := claim(t, direct, req)
	proxy.Cut()
	next(t, answers, idem.InProgress)
	require.NoError(t, direct.Abandon(t.Context(), owner))
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	time.Sleep(500 * time.Millisecond) // the copy has been carried out by then, and given up
	begin(t, direct, req, idem.Fresh)
}

func TestCleanersThatCleanOnceInALifetime(t *testing.T) {
	const cleaners = 16
	var counted atomic.Int64
	pool := newPool(t, databaseURL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = queryHook(func(string) { counted.Add(1) }) })
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	_, err := store.Clean(t.Context())
	require.NoError(t, err)
	before := counted.Load()
	for range cleaners {
		t.Cleanup(store.StartCleaner(math.MaxInt64))
	}
	time.Sleep(500 * time.Millisecond)
	require.LessOrEqual(t, counted.Load()-before, int64(cleaners))
}
