package pgstore_test

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// tries is how often a Begin is sent whose replies are all lost.
const tries = 4

// free wants that a key becomes free, although its request has a lease of an hour.
func free(tb testing.TB, store *pgstore.Store, req idem.Request) {
	tb.Helper()
	eventually(tb, func() bool {
		out, err := store.Begin(tb.Context(), req)
		require.NoError(tb, err)
		return out.State == idem.Fresh
	}, "a key that is free")
}

// A Begin that fails must not leave a claim behind that nobody knows of, though the server has carried it out.
func TestFailedBeginLeavesNoClaim(t *testing.T) {
	proxy, through := proxied(t)
	direct := newStore(t, newPool(t, databaseURL), pgstore.Config{PollOnly: true})
	store := newStore(t, newPool(t, databaseURL, through), pgstore.Config{PollOnly: true})
	fails := func(t *testing.T, req idem.Request, drops int) {
		t.Helper()
		proxy.DropRepliesTo(req.Key, drops)
		_, err := store.Begin(t.Context(), req)
		require.ErrorContains(t, err, "pgstore: ")
	}
	t.Run("when all replies are lost", func(t *testing.T) {
		req := request()
		fails(t, req, tries)
		free(t, direct, req)
	})
	t.Run("when it waits", func(t *testing.T) {
		req := request()
		req.Wait = true
		fails(t, req, tries)
		req.Wait = false
		free(t, direct, req)
	})
	t.Run("when the reply to its own undoing is lost, too", func(t *testing.T) {
		req := request()
		fails(t, req, tries+1)
		free(t, direct, req)
	})
}

// A Begin that has failed gives up what it was granted itself, and nothing else.
func TestUndoKnowsItsClaim(t *testing.T) {
	const ours, theirs = 4711, 4712
	store := newStore(t, newPool(t, databaseURL), pgstore.Config{PollOnly: true})
	req := request()
	undo := func(nonce int64) error { return store.TryUndo(t.Context(), nonce, req.Scope, req.Key) }
	require.ErrorContains(t, undo(ours), "no claim", "a key that is not there")
	_, err := store.BeginAs(t.Context(), ours, req)
	require.NoError(t, err)
	require.ErrorContains(t, undo(theirs), "no claim", "a claim of somebody else's")
	begin(t, store, req, idem.InProgress)
	require.NoError(t, undo(ours))
	require.ErrorContains(t, undo(ours), "no claim", "a key that is free")

	out, err := store.BeginAs(t.Context(), theirs, req)
	require.NoError(t, err)
	require.Equal(t, idem.Fresh, out.State)
	require.ErrorContains(t, undo(ours), "no claim", "a key that was taken over")
	require.NoError(t, store.Complete(t.Context(), out.Claim, text("done")))
	require.ErrorContains(t, undo(theirs), "no claim", "a key that was completed")
	replays(t, store, req, "done")
}

// A spy is called when a statement has ended, and when a connection is asked for.
type spy struct {
	ended    func(sql string, err error)
	acquires func()
}

type statementKey struct{}

func (*spy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, data.SQL)
}

func (s *spy) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if sql, ok := ctx.Value(statementKey{}).(string); ok && s.ended != nil {
		s.ended(sql, data.Err)
	}
}

func (s *spy) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if s.acquires != nil {
		s.acquires()
	}
	return ctx
}

func (*spy) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func (s *spy) option() poolOption { return func(c *pgxpool.Config) { c.ConnConfig.Tracer = s } }

// A caller that leaves when the first reply was lost does not have the Begin sent again, so it is not known then what
// became of it.
func TestLeavingAfterALostReplyLeavesNoClaim(t *testing.T) {
	for name, leaves := range map[string]func(leave func()) spy{
		"as soon as it is lost": func(leave func()) spy {
			return spy{ended: func(sql string, err error) {
				if strings.Contains(sql, ".tokens'") && err != nil {
					leave()
				}
			}}
		},
		"before it is sent again": func(leave func()) spy {
			n := 0
			return spy{acquires: func() {
				if n++; n == 2 {
					leave()
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, through := proxied(t)
			direct := newStore(t, newPool(t, databaseURL), pgstore.Config{PollOnly: true})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			watch := leaves(leave)
			store := newStore(t, newPool(t, databaseURL, through, watch.option()), pgstore.Config{PollOnly: true})
			req := request()
			proxy.DropRepliesTo(req.Key, 1)
			_, err := store.Begin(ctx, req)
			require.ErrorIs(t, err, context.Canceled)
			free(t, direct, req)
		})
	}
}

// A deafConn sends everything but the request to cancel what another connection does.
type deafConn struct{ net.Conn }

const cancelRequest = 80877102 // its second word, see "Message Formats" in Postgres' manual

func (c deafConn) Write(b []byte) (int, error) {
	if len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func deaf(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return deafConn{conn}, nil
	}
}

// The server goes on with a statement whose connection broke, so what there is to give up may come only later.
func TestABlockedBeginThatWasCutLeavesNoClaim(t *testing.T) {
	proxy, through := proxied(t)
	pool := newPool(t, databaseURL)
	direct := newStore(t, pool, pgstore.Config{PollOnly: true})
	tried := make(chan struct{}, 100)
	watch := spy{ended: func(sql string, _ error) {
		if strings.Contains(sql, "nonce = 0") {
			tried <- struct{}{}
		}
	}}
	store := newStore(t, newPool(t, databaseURL, through, deaf, watch.option()), pgstore.Config{PollOnly: true})
	req := request()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = direct.BeginTx(t.Context(), tx, req)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	answers := beginning(ctx, store, req)
	blocked(t, pool, "claim_1") // the insert that comes first waits for some milliseconds only
	cancel()
	require.ErrorIs(t, (<-answers).err, context.Canceled)
	proxy.Cut()
	select {
	case <-tried:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "nobody tries to give the claim up")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	eventually(t, func() (claimed bool) {
		sql := "SELECT EXISTS (SELECT FROM " + pgx.Identifier{schema, "records"}.Sanitize() + " WHERE key = $1)"
		require.NoError(t, pool.QueryRow(t.Context(), sql, req.Key).Scan(&claimed))
		return claimed
	}, "the claim of the Begin that was cut")
	eventually(t, func() bool { return store.Undoing() == 0 }, "the end of undoing")
	claim(t, direct, req)
}

// While the network swallows everything, each Begin fails. What that leaves behind is bounded, and ends with the store.
func TestUndoingIsBounded(t *testing.T) {
	const most = 256
	proxy, through := proxied(t)
	store := newStore(t, newPool(t, databaseURL, through), pgstore.Config{PollOnly: true})
	begin(t, store, request(), idem.Fresh)
	proxy.BlackHole(true)
	started := 0
	for range most + 10 {
		if store.Undo(t.Context(), 4711, "test", "none") {
			started++
		}
	}
	require.Equal(t, most, started)
	require.Equal(t, most, store.Undoing())
	start := time.Now()
	require.NoError(t, store.Close())
	require.Less(t, time.Since(start), time.Second, "Close")
	require.False(t, store.Undo(t.Context(), 4711, "test", "none"), "closed")
	require.Zero(t, store.Undoing())
	proxy.Cut() // or else the pool waits for its connections
	proxy.BlackHole(false)
}
