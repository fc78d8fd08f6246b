package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// A shop is a business table in the same database as the records.
type shop struct {
	testing.TB
	pool  *pgxpool.Pool
	store *pgstore.Store
	table string
}

func newShop(tb testing.TB, options ...poolOption) *shop {
	tb.Helper()
	pool := newPool(tb, databaseURL, options...)
	s := &shop{TB: tb, pool: pool, store: newStore(tb, pool, pgstore.Config{})}
	name := newSchema(tb, pool, "shop_")
	s.table = pgx.Identifier{name, "charges"}.Sanitize()
	_, err := pool.Exec(tb.Context(), "CREATE SCHEMA "+name+" CREATE TABLE charges (order_id text, token bigint)")
	require.NoError(tb, err)
	return s
}

func (s *shop) begin() pgx.Tx {
	s.Helper()
	tx, err := s.pool.Begin(s.Context())
	require.NoError(s, err)
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// charge is the effect that must happen once.
func (s *shop) charge(tx pgx.Tx, c idem.Claim) {
	s.Helper()
	_, err := tx.Exec(s.Context(), "INSERT INTO "+s.table+" VALUES ($1, $2)", c.Key, int64(c.Token))
	require.NoError(s, err)
}

// charged wants that an order was charged so many times.
func (s *shop) charged(want int, order string) {
	s.Helper()
	var n int
	require.NoError(s, s.pool.QueryRow(s.Context(), "SELECT count(*) FROM "+s.table+" WHERE order_id = $1", order).Scan(&n))
	require.Equal(s, want, n, "charges")
}

// usable wants that a transaction was not broken.
func (s *shop) usable(tx pgx.Tx) {
	s.Helper()
	var one int
	require.NoError(s, tx.QueryRow(s.Context(), "SELECT 1").Scan(&one))
}

func TestCompleteTx(t *testing.T) {
	t.Run("commits effect and response together", func(t *testing.T) {
		s := newShop(t)
		req := request()
		c := claim(t, s.store, req)
		tx := s.begin()
		s.charge(tx, c)
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, c, text("charged")))
		begin(t, s.store, req, idem.InProgress)
		require.NoError(t, tx.Commit(t.Context()))
		replays(t, s.store, req, "charged")
		s.charged(1, req.Key)
	})
	t.Run("leaves nothing when it is rolled back", func(t *testing.T) {
		s := newShop(t)
		req := request()
		c := claim(t, s.store, req)
		tx := s.begin()
		s.charge(tx, c)
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, c, text("charged")))
		require.NoError(t, tx.Rollback(t.Context()))
		begin(t, s.store, req, idem.InProgress)
		require.NoError(t, s.store.Abandon(t.Context(), c))
		claim(t, s.store, req)
		s.charged(0, req.Key)
	})
	t.Run("tells an owner that lost its claim", func(t *testing.T) {
		s := newShop(t)
		req := request()
		stale := claim(t, s.store, req)
		require.NoError(t, s.store.Abandon(t.Context(), stale))
		current := claim(t, s.store, req)
		tx := s.begin()
		s.charge(tx, stale)
		require.ErrorIs(t, s.store.CompleteTx(t.Context(), tx, stale, text("stale")), idem.ErrClaimLost)
		s.usable(tx)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, s.store.Complete(t.Context(), current, text("current")))
		replays(t, s.store, req, "current")
		s.charged(0, req.Key)
	})
	t.Run("keeps others from taking over until it ends", func(t *testing.T) {
		s := newShop(t)
		req := request()
		req.Lease = time.Millisecond
		c := claim(t, s.store, req)
		tx := s.begin()
		s.charge(tx, c)
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, c, text("charged")))
		answers := beginning(t.Context(), s.store, req)
		blocked(t, s.pool, schema)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "charged", string(next(t, answers, idem.Replay).Response.Body))
		s.charged(1, req.Key)
	})
	t.Run("wakes those who wait when it is committed", func(t *testing.T) {
		var counted counter
		s := newShop(t, counted.option())
		req := request()
		c := claim(t, s.store, req)
		wait := req
		wait.Wait = true
		other := newStore(t, newPool(t, databaseURL), pgstore.Config{})
		answers := beginning(t.Context(), other, wait)
		eventually(t, func() bool { return other.Waiting() == 1 && other.Listening() && s.store.Listening() }, "one who waits")
		tx := s.begin()
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, c, text("charged")))
		var durable string
		require.NoError(t, tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&durable))
		require.Equal(t, "on", durable, "the caller's commit")
		require.NoError(t, tx.Commit(t.Context()))
		next(t, answers, idem.Replay)
		require.EqualValues(t, 1, counted.notes.Load(), "notifications")
	})
	t.Run("cuts what is too large", func(t *testing.T) {
		s := newShop(t)
		store := newStore(t, s.pool, pgstore.Config{MaxResponseBytes: 10})
		req := request()
		c := claim(t, store, req)
		tx := s.begin()
		require.NoError(t, store.CompleteTx(t.Context(), tx, c, text("eleven bytes")), "or else the effects are rolled back")
		require.NoError(t, tx.Commit(t.Context()))
		resp := begin(t, store, req, idem.Replay).Response
		require.True(t, resp.Truncated)
		require.Empty(t, resp.Body)
	})
}

// Do records a response itself, too. It must make nothing of finding it recorded, whether all of it was kept or not.
func TestCompleteTxInDo(t *testing.T) {
	for _, test := range []struct {
		name, body string
		truncated  bool
		duplicate  error
	}{
		{"all of it is kept", "ten bytes.", false, nil},
		{"too large", "more than ten bytes", true, idem.ErrTruncated},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(t)
			store := newStore(t, s.pool, pgstore.Config{MaxResponseBytes: 10})
			req := request()
			charge := func(ctx context.Context, c idem.Claim) (idem.Response, error) {
				resp := text(test.body)
				return resp, pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
					s.charge(tx, c)
					return store.CompleteTx(ctx, tx, c, resp)
				})
			}
			resp, err := idem.Do(t.Context(), store, req, charge)
			require.NoError(t, err)
			require.Equal(t, test.body, string(resp.Body), "the owner has all of it")
			require.Equal(t, test.truncated, resp.Truncated)
			for range 2 {
				resp, err = idem.Do(t.Context(), store, req, charge)
				require.ErrorIs(t, err, test.duplicate)
				require.Equal(t, test.truncated, resp.Truncated)
				require.Equal(t, 200, resp.Status)
			}
			s.charged(1, req.Key)
		})
	}
}

func TestBeginTx(t *testing.T) {
	t.Run("is there with the effects or not at all", func(t *testing.T) {
		s := newShop(t)
		req := request()
		for _, commit := range []bool{false, true} {
			tx := s.begin()
			out, err := s.store.BeginTx(t.Context(), tx, req)
			require.NoError(t, err)
			require.Equal(t, idem.Fresh, out.State)
			s.charge(tx, out.Claim)
			require.NoError(t, s.store.CompleteTx(t.Context(), tx, out.Claim, text("charged")))
			if commit {
				require.NoError(t, tx.Commit(t.Context()))
			} else {
				require.NoError(t, tx.Rollback(t.Context()))
			}
		}
		replays(t, s.store, req, "charged")
		s.charged(1, req.Key)
	})
	t.Run("blocks rivals, and a rollback frees the key", func(t *testing.T) {
		s := newShop(t)
		req := request()
		tx := s.begin()
		_, err := s.store.BeginTx(t.Context(), tx, req)
		require.NoError(t, err)
		answers := beginning(t.Context(), s.store, req)
		blocked(t, s.pool, schema)
		require.NoError(t, tx.Rollback(t.Context()))
		next(t, answers, idem.Fresh)
	})
	t.Run("blocks rivals, and a commit gives them the response", func(t *testing.T) {
		s := newShop(t)
		req := request()
		tx := s.begin()
		out, err := s.store.BeginTx(t.Context(), tx, req)
		require.NoError(t, err)
		answers := beginning(t.Context(), s.store, req)
		blocked(t, s.pool, schema)
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, out.Claim, text("done")))
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "done", string(next(t, answers, idem.Replay).Response.Body))
	})
	t.Run("leaves the transaction usable whatever it finds", func(t *testing.T) {
		s := newShop(t)
		running, done := request(), request()
		claim(t, s.store, running)
		require.NoError(t, s.store.Complete(t.Context(), claim(t, s.store, done), text("done")))
		foreign := done
		foreign.Fingerprint = idem.Fingerprint{}
		tx := s.begin()
		for _, want := range []struct {
			req   idem.Request
			state idem.State
		}{{running, idem.InProgress}, {done, idem.Replay}, {foreign, idem.Mismatch}, {request(), idem.Fresh}} {
			out, err := s.store.BeginTx(t.Context(), tx, want.req)
			require.NoError(t, err)
			require.Equal(t, want.state.String(), out.State.String())
			s.usable(tx)
		}
		require.NoError(t, tx.Commit(t.Context()))
	})
	t.Run("does not wait", func(t *testing.T) {
		s := newShop(t)
		req := request()
		req.Wait = true
		tx := s.begin()
		_, err := s.store.BeginTx(t.Context(), tx, req)
		require.ErrorContains(t, err, "BeginTx does not wait")
		s.usable(tx)
	})
	t.Run("is refused after the lock_timeout", func(t *testing.T) {
		s := newShop(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" })
		req := request()
		tx := s.begin()
		_, err := s.store.BeginTx(t.Context(), tx, req)
		require.NoError(t, err)
		_, err = s.store.BeginTx(t.Context(), s.begin(), req)
		require.Equal(t, "55P03", sqlState(err))
	})
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Under an isolation level that keeps to one view of the table, a caller's transaction that was overtaken gets the
// server's error, for the caller to run all of it again.
func TestSerializationFailureOfATransaction(t *testing.T) {
	s := newShop(t, isolation("repeatable read"))
	req := request()
	tx := s.begin()
	s.usable(tx) // it has its view from here on
	c := claim(t, s.store, req)
	_, err := s.store.BeginTx(t.Context(), tx, req)
	require.Equal(t, "40001", sqlState(err))
	require.NoError(t, tx.Rollback(t.Context()))

	tx = s.begin()
	s.usable(tx)
	require.NoError(t, s.store.Extend(t.Context(), c, time.Hour))
	require.Equal(t, "40001", sqlState(s.store.CompleteTx(t.Context(), tx, c, text("done"))))
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, s.store.Complete(t.Context(), c, text("done")))
	replays(t, s.store, req, "done")
}

// The store's own statements are run again when the server ends them for the sake of another transaction.
func TestSerializationAndDeadlockAreMet(t *testing.T) {
	t.Run("serialization", func(t *testing.T) {
		s := newShop(t, isolation("serializable"))
		req := request()
		req.Lease = time.Millisecond
		c := claim(t, s.store, req)
		req.Lease = time.Hour
		tx := s.begin()
		require.NoError(t, s.store.CompleteTx(t.Context(), tx, c, idem.Response{TTL: time.Microsecond}))
		// It wants the row that tx has written, and is told 40001 when tx has committed.
		answers := beginning(t.Context(), s.store, req)
		blocked(t, s.pool, schema)
		require.NoError(t, tx.Commit(t.Context()))
		next(t, answers, idem.Fresh)
	})
	t.Run("deadlock", func(t *testing.T) {
		// Of two that wait for each other, the server ends the one that has waited for deadlock_timeout first.
		s := newShop(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["deadlock_timeout"] = "300ms" })
		name := newSchema(t, s.pool, "deadlock_")
		require.NoError(t, pgstore.Migrate(t.Context(), s.pool, name))
		store := newStore(t, s.pool, pgstore.Config{Schema: name})
		req := request()
		c := claim(t, store, req)
		tx := s.begin()
		_, err := tx.Exec(t.Context(), "SET LOCAL deadlock_timeout = '1min'; LOCK TABLE "+s.table)
		require.NoError(t, err)
		// Complete locks the record and then wants the table that tx has; tx wants the record.
		_, err = s.pool.Exec(t.Context(), `CREATE FUNCTION `+name+`.charge() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO `+s.table+` VALUES (new.key, new.token); RETURN new; END $$;
			CREATE TRIGGER charge BEFORE UPDATE ON `+name+`.records FOR EACH ROW EXECUTE FUNCTION `+name+`.charge()`)
		require.NoError(t, err)
		completed := make(chan error, 1)
		go func() { completed <- store.Complete(t.Context(), c, text("done")) }()
		blocked(t, s.pool, name)
		_, err = tx.Exec(t.Context(), "UPDATE "+name+".records SET status = 1")
		require.NoError(t, err, "Complete is the one that was ended")
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, <-completed)
		replays(t, store, req, "done")
		s.charged(1, req.Key)
	})
}
