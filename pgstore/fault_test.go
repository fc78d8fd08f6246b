package pgstore_test

import (
	"context"
	"crypto/rand"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/faultproxy"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// proxied returns a proxy in front of the database, and what makes a pool go through it.
func proxied(tb testing.TB) (*faultproxy.Proxy, poolOption) {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(databaseURL)
	require.NoError(tb, err)
	proxy, err := faultproxy.New(net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port))))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, proxy.Close()) })
	host, port, err := net.SplitHostPort(proxy.Addr())
	require.NoError(tb, err)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(tb, err)
	return proxy, func(c *pgxpool.Config) { c.ConnConfig.Host, c.ConnConfig.Port = host, uint16(n) }
}

// A reply that is lost leaves open whether the statement was carried out. It is sent again, and must then find its own
// work rather than take it for somebody else's.
func TestLostReplies(t *testing.T) {
	proxy, through := proxied(t)
	store := newStore(t, newPool(t, databaseURL, through), pgstore.Config{PollOnly: true})
	drop := func(t *testing.T, req idem.Request, call func()) {
		t.Helper()
		proxy.DropRepliesTo(req.Key, 1)
		call()
		proxy.DropRepliesTo(req.Key, 0)
	}
	t.Run("of Begin", func(t *testing.T) {
		req := request()
		var c idem.Claim
		drop(t, req, func() { c = claim(t, store, req) })
		begin(t, store, req, idem.InProgress)
		require.NoError(t, store.Complete(t.Context(), c, text("done")))
		replays(t, store, req, "done")
	})
	t.Run("of Begin that waits", func(t *testing.T) {
		req := request()
		req.Wait = true
		drop(t, req, func() { claim(t, store, req) })
	})
	t.Run("of Begin that takes over", func(t *testing.T) {
		req := request()
		require.NoError(t, store.Abandon(t.Context(), claim(t, store, req)))
		drop(t, req, func() { claim(t, store, req) })
	})
	t.Run("of Begin that replays", func(t *testing.T) {
		req := request()
		require.NoError(t, store.Complete(t.Context(), claim(t, store, req), text("done")))
		drop(t, req, func() { replays(t, store, req, "done") })
	})
	t.Run("of Complete", func(t *testing.T) {
		req := request()
		c := claim(t, store, req)
		drop(t, req, func() { require.NoError(t, store.Complete(t.Context(), c, text("done"))) })
		replays(t, store, req, "done")
	})
	t.Run("of Extend", func(t *testing.T) {
		req := request()
		req.Lease = time.Minute
		c := claim(t, store, req)
		drop(t, req, func() { require.NoError(t, store.Extend(t.Context(), c, time.Hour)) })
		left := begin(t, store, req, idem.InProgress).Remaining
		require.Greater(t, left, 59*time.Minute)
		require.LessOrEqual(t, left, time.Hour)
	})
	t.Run("of Abandon", func(t *testing.T) {
		req := request()
		c := claim(t, store, req)
		drop(t, req, func() { require.NoError(t, store.Abandon(t.Context(), c)) })
		claim(t, store, req)
	})
	t.Run("of an operator's call", func(t *testing.T) {
		// To send these again could only tell what is there by now.
		req := request()
		claim(t, store, req)
		drop(t, req, func() {
			require.Error(t, store.Resolve(t.Context(), req.Scope, req.Key, text("resolved")))
		})
		replays(t, store, req, "resolved")
	})
}

// What a Begin is granted it has only when the commit succeeds, after which the server has sent the row already.
func TestCommitOfABeginFails(t *testing.T) {
	const schema = "failing commits"
	pool := newPool(t, databaseURL)
	require.NoError(t, pgstore.Migrate(t.Context(), pool, schema))
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), `DROP SCHEMA "failing commits" CASCADE`)
		require.NoError(t, err)
	})
	_, err := pool.Exec(t.Context(), `
		CREATE SEQUENCE "failing commits".failures;
		CREATE FUNCTION "failing commits".fail() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF new.key LIKE '% for ever' THEN
				RAISE 'no';
			ELSIF nextval('"failing commits".failures') <= 3 THEN -- no rollback takes that back
				RAISE 'not now' USING ERRCODE = 'serialization_failure';
			END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON "failing commits".records
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "failing commits".fail()`)
	require.NoError(t, err)
	store := newStore(t, pool, pgstore.Config{Schema: schema})
	t.Run("for now", func(t *testing.T) {
		req := request()
		c := claim(t, store, req)
		begin(t, store, req, idem.InProgress)
		require.NoError(t, store.Complete(t.Context(), c, text("done")))
		replays(t, store, req, "done")
	})
	t.Run("for ever", func(t *testing.T) {
		req := request()
		req.Key += " for ever"
		out, err := store.Begin(t.Context(), req)
		require.ErrorContains(t, err, "no")
		require.Zero(t, out)
	})
}

// A Begin that is sent again because its connection broke may be carried out in any order with its first copy, also
// after what it claimed was used.
func TestCopiesOfABegin(t *testing.T) {
	store := newStore(t, newPool(t, databaseURL), pgstore.Config{})
	const nonce = 4711
	for _, test := range []struct {
		name  string
		use   func(t *testing.T, c idem.Claim)
		state idem.State
	}{
		{"while the operation runs", func(*testing.T, idem.Claim) {}, idem.Fresh},
		{"after Extend", func(t *testing.T, c idem.Claim) {
			t.Helper()
			require.NoError(t, store.Extend(t.Context(), c, time.Hour))
		}, idem.Fresh},
		{"after Complete", func(t *testing.T, c idem.Claim) {
			t.Helper()
			require.NoError(t, store.Complete(t.Context(), c, idem.Response{Status: 201}))
		}, idem.Replay},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := idem.Request{Scope: "copies", Key: rand.Text()}
			first, err := store.BeginAs(t.Context(), nonce, req)
			require.NoError(t, err)
			require.Equal(t, idem.Fresh, first.State)
			test.use(t, first.Claim)

			late, err := store.BeginAs(t.Context(), nonce, req)
			require.NoError(t, err)
			require.Equal(t, test.state, late.State)
			if late.State == idem.Fresh {
				require.Equal(t, first.Claim, late.Claim, "or else the owner has lost its claim to nobody")
			}
			require.NoError(t, store.Complete(t.Context(), first.Claim, idem.Response{Status: 201}))
			replay, err := store.Begin(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, 201, replay.Response.Status)
		})
	}
}

// A network that swallows everything must not keep a caller for longer than it wants to stay.
func TestBlackHole(t *testing.T) {
	proxy, through := proxied(t)
	store := newStore(t, newPool(t, databaseURL, through), pgstore.Config{PollOnly: true})
	req := request()
	c := claim(t, store, req)
	proxy.BlackHole(true)
	for name, call := range map[string]func(context.Context) error{
		"Begin":    func(ctx context.Context) error { _, err := store.Begin(ctx, request()); return err },
		"Complete": func(ctx context.Context) error { return store.Complete(ctx, c, text("done")) },
		"Extend":   func(ctx context.Context) error { return store.Extend(ctx, c, time.Hour) },
		"Lookup":   func(ctx context.Context) error { _, _, err := store.Lookup(ctx, req.Scope, req.Key); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		require.ErrorIs(t, call(ctx), context.DeadlineExceeded, name)
		require.Less(t, time.Since(start), 2*time.Second, name)
		cancel()
	}
	proxy.BlackHole(false)
	proxy.Cut()
	// The pool may hand out connections that are dead, and each call takes some of them only.
	eventually(t, func() bool { return store.Complete(t.Context(), c, text("done")) == nil }, "Complete when the network is back")
	replays(t, store, req, "done")
}

// Whoever waits when the connection is lost that hears of the end must hear of it all the same.
func TestListenerIsCut(t *testing.T) {
	proxy, through := proxied(t)
	var counted counter
	waiting := newStore(t, newPool(t, databaseURL, through, counted.option()), pgstore.Config{})
	owner := newStore(t, newPool(t, databaseURL), pgstore.Config{})
	req := request()
	c := claim(t, owner, req)
	wait := req
	wait.Wait = true
	answers := beginning(t.Context(), waiting, wait)
	// From the second look on it relies on being told, for a second at least.
	eventually(t, func() bool { return counted.looks.Load() >= 2 && waiting.Listening() }, "one who waits")
	proxy.Cut()
	require.NoError(t, owner.Complete(t.Context(), c, text("done")))
	require.Equal(t, "done", string(next(t, answers, idem.Replay).Response.Body))
	eventually(t, waiting.Listening, "listening anew")
}

// A caller that leaves while its Begin is under way must not leave a claim behind that nobody knows of.
func TestLeavingGivesTheClaimBack(t *testing.T) {
	pool := newPool(t, databaseURL)
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	req := request()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = store.BeginTx(t.Context(), tx, req)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	answers := beginning(ctx, store, req)
	blocked(t, pool, schema)
	cancel()
	require.ErrorIs(t, (<-answers).err, context.Canceled)
	// The Begin that was left claims the key now.
	require.NoError(t, tx.Rollback(t.Context()))
	free(t, store, req)
}

// When the lease that was granted is all but over by the time that the caller hears of it, since the statement was
// blocked, it is granted anew.
func TestABlockedBeginHasAWholeLease(t *testing.T) {
	pool := newPool(t, databaseURL)
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	req := request()
	req.Lease = 1500 * time.Millisecond
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = store.BeginTx(t.Context(), tx, req)
	require.NoError(t, err)
	answers := beginning(t.Context(), store, req)
	blocked(t, pool, schema)
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep(1.2)")
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	next(t, answers, idem.Fresh)
	require.Greater(t, begin(t, store, req, idem.InProgress).Remaining, time.Second)
}

// Tokens grow although the Begin that gets the key has drawn one before it had to wait for those who had it.
func TestABlockedBeginHasTheHighestToken(t *testing.T) {
	pool := newPool(t, databaseURL)
	store := newStore(t, pool, pgstore.Config{PollOnly: true})
	req, brief := request(), request()
	brief.Key, brief.Lease = req.Key, time.Millisecond
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = store.BeginTx(t.Context(), tx, brief)
	require.NoError(t, err)
	answers := beginning(t.Context(), store, req)
	blocked(t, pool, schema)
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep(0.01)")
	require.NoError(t, err)
	second, err := store.BeginTx(t.Context(), tx, brief)
	require.NoError(t, err)
	require.Equal(t, idem.Fresh.String(), second.State.String())
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep(0.01)")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Greater(t, next(t, answers, idem.Fresh).Claim.Token, second.Claim.Token)
}
