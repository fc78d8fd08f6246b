package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// graceTime is how long a Begin whose caller has left is given to end by itself. Only then is it known whether it made a
// claim that has to be given back.
const graceTime = 2 * time.Second

// errBusy is what a Begin ends with that others were ahead of every time.
var errBusy = errors.New("pgstore: key changed hands each time it was looked at")

// Begin implements [idem.Store]. It is one round trip, or two when a key is known that was expected to be new: for the
// first retries after many new keys. It is more when other callers begin the same key in the same instant.
func (s *Store) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if err := s.checkBegin(ctx, &req); err != nil {
		return idem.Outcome{}, err
	}
	if req.Wait {
		return s.wait(ctx, &req)
	}
	out, err := s.begin(ctx, &req, newNonce(), s.forecast.isNew(), true)
	if err == nil {
		s.forecast.saw(out.State == idem.Fresh)
	}
	return out, err
}

func (s *Store) checkBegin(ctx context.Context, req *idem.Request) error {
	if err := s.check(ctx, req.Scope, req.Key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if req.Lease < 0 {
		return fmt.Errorf("pgstore: Request.Lease is %v, want zero or more", req.Lease)
	}
	req.Lease = orDefault(req.Lease, s.cfg.Lease)
	return nil
}

// newNonce returns what a Begin knows its own claim by when it has to be sent again. Zero is nobody's.
func newNonce() int64 {
	for {
		if n := rand.Int64(); n != 0 {
			return n
		}
	}
}

// wait is Begin of a caller that waits for its turn. All callers that wait for a key share their looks.
func (s *Store) wait(ctx context.Context, req *idem.Request) (idem.Outcome, error) {
	// Before the first look: what happens after that look is hinted at.
	unexpect := s.expect(req.Scope, req.Key)
	defer unexpect()
	buf, nonce := req.Buf, newNonce()
	req.Buf = nil // a response that all share must not lie in the buffer of one
	key := waitroom.Key{Scope: req.Scope, Key: req.Key, Fingerprint: req.Fingerprint}
	out, err := s.room.Wait(ctx, key, func(ctx context.Context, _ int) waitroom.Look[idem.Outcome] {
		out, err := s.begin(ctx, req, nonce, false, false) // who waits knows the key
		look := waitroom.Look[idem.Outcome]{Result: out, Err: err, Verdict: waitroom.Everyones}
		switch out.State {
		case idem.InProgress:
			look.Verdict, look.After = waitroom.Again, out.Remaining
		case idem.Fresh:
			look.Verdict = waitroom.Mine
		default:
		}
		return look
	})
	switch {
	case errors.Is(err, waitroom.ErrCrowded):
		req.Buf = buf
		return s.begin(ctx, req, nonce, false, true)
	case errors.Is(err, waitroom.ErrClosed):
		return idem.Outcome{}, idem.ErrClosed
	case out.State == idem.Replay:
		fill(&out.Response, buf, out.Response.Header, out.Response.Body)
	}
	return out, err
}

// begin asks until it is told. It answers as Begin without Wait does. When it fails, nobody may use the nonce again: a
// claim that was made without being heard of is given up by it. asNew: the key is taken for a new one at first.
// lastly: nobody asks again with the nonce, so that a copy which a server comes to late is given up whatever the answer is.
func (s *Store) begin(ctx context.Context, req *idem.Request, nonce int64, asNew, lastly bool) (idem.Outcome, error) {
	args := s.beginArgs(req, nonce)
	tries := retrier{pool: s.pool}
	unheard := false
	for {
		out, doubt, err := s.ask(ctx, req, nonce, args, asNew)
		if err == nil {
			if unheard && lastly && out.State != idem.Fresh {
				s.undo(ctx, req.Scope, req.Key, nonce)
			}
			return out, nil
		}
		asNew = false // it may have got there
		unheard = unheard || doubt
		var again bool
		if errors.Is(err, errBusy) {
			again = tries.conflict(ctx)
		} else {
			again = tries.again(ctx, err)
		}
		if !again {
			if unheard {
				s.undo(ctx, req.Scope, req.Key, nonce)
			}
			return idem.Outcome{}, failed(ctx, err)
		}
	}
}

func (s *Store) beginArgs(req *idem.Request, nonce int64) []any {
	lease, hold := micros(req.Lease), micros(s.hold())
	return []any{
		escape(req.Scope), escape(req.Key), req.Fingerprint[:], nonce, lease, hold, lease + micros(s.cfg.TTL),
	}
}

// ask runs Begin's statements once. When ctx ends meanwhile, it returns, but the statement goes on: to interrupt it
// would break the connection, and leave open whether there is a claim now, which nobody knows of. That is open also when
// the connection breaks by itself: then doubt is true, and the caller has to see to it.
func (s *Store) ask(
	ctx context.Context, req *idem.Request, nonce int64, args []any, asNew bool,
) (out idem.Outcome, doubt bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return idem.Outcome{}, false, err // nothing was sent
	}
	a := &asking{conn: conn, done: make(chan error, 1)}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { a.done <- a.run(&s.queries, args, asNew) }()
	select {
	case err := <-a.done:
		stop := context.AfterFunc(ctx, a.cancel)
		defer stop()
		out, err = a.answer(err, req)
		return out, a.inDoubt(err), err
	case <-ctx.Done():
		giveBack := func() { s.giveBack(a, req.Scope, req.Key, nonce) }
		if !s.spawn(giveBack) {
			a.cancel() // nobody waits for the rest any more
			go giveBack()
		}
		return idem.Outcome{}, false, context.Cause(ctx)
	}
}

// An asking is Begin's statements under way. A goroutine sends them and waits for the first row; from then on it
// belongs to whoever received from done.
type asking struct {
	conn   *pgxpool.Conn
	ctx    context.Context //nolint:containedctx // the statements', which must outlive the caller's
	cancel context.CancelFunc
	done   chan error

	claims bool        // a statement that may claim the key was sent
	token  pgtype.Int8 // of a claim of a new key
	rows   pgx.Rows    // of any other answer, at the first row
}

// run tries first what is likely, which is the cheapest: to insert a new key, or to look at a known one. What is
// left is for Begin's own statement, which does all there is to do.
func (a *asking) run(q *queries, args []any, asNew bool) error {
	var err error
	if a.claims = asNew; asNew {
		err = a.insert(q.insert, args)
	} else {
		err = a.query(q.look, args[0], args[1], args[3])
	}
	if err != nil || a.token.Valid || a.rows != nil {
		return err
	}
	a.claims = true
	return a.query(q.begin, args...)
}

// inDoubt tells whether there may be a claim although the statements ended with err.
func (a *asking) inDoubt(err error) bool { return a.claims && inDoubt(err) }

// query sends a statement, and keeps its rows if there is one.
func (a *asking) query(query string, args ...any) error {
	rows, err := a.conn.Query(a.ctx, query, args...)
	if err != nil {
		return err
	}
	if rows.Next() {
		a.rows = rows
		return nil
	}
	return rows.Err()
}

// insert claims a key that is new. The claim holds when the statement has succeeded, and not before.
func (a *asking) insert(query string, args []any) error {
	var token pgtype.Int8
	err := a.conn.QueryRow(a.ctx, query, args...).Scan(&token)
	switch {
	case err == nil:
		a.token = token
	case errors.Is(err, pgx.ErrNoRows), sqlState(err) == lockNotAvailable: // there is a row
		return nil
	}
	return err
}

// answer reads the first row, unless err says that there is none, and ends the statement. What the row says holds only
// when that succeeded: it was sent before the commit, which may fail, above all at the isolation level serializable.
func (a *asking) answer(err error, req *idem.Request) (out idem.Outcome, _ error) {
	defer a.cancel()
	defer a.conn.Release()
	if a.token.Valid {
		return granted(req, a.token.Int64), nil
	}
	if err != nil || a.rows == nil {
		return out, cmp.Or(err, errBusy)
	}
	out, err = readBegin(a.rows, req)
	a.rows.Close()
	if err = cmp.Or(err, a.rows.Err()); err != nil {
		return idem.Outcome{}, err
	}
	return out, nil
}

func granted(req *idem.Request, token int64) idem.Outcome {
	claim := idem.Claim{Scope: req.Scope, Key: req.Key, Token: uint64(token), Fingerprint: req.Fingerprint}
	return idem.Outcome{State: idem.Fresh, Claim: claim, Remaining: req.Lease}
}

// giveBack waits for a statement whose caller has left, and gives up what it claimed, so that the key is not stuck for
// a lease. A statement that goes on for too long is interrupted, after which it is open whether it claimed anything.
func (s *Store) giveBack(a *asking, scope, key string, nonce int64) {
	timer := time.AfterFunc(graceTime, a.cancel)
	defer timer.Stop()
	out, err := a.answer(<-a.done, &idem.Request{})
	if a.inDoubt(err) {
		s.undo(a.ctx, scope, key, nonce)
	}
	if err != nil || out.State != idem.Fresh {
		return
	}
	claim := idem.Claim{Scope: scope, Key: key, Token: out.Claim.Token}
	err = s.abandon(context.Background(), claim)
	if err != nil && !errors.Is(err, idem.ErrClaimLost) { // a lost one was undone by begin for the sake of an earlier try
		s.cfg.Logger.Warn("pgstore: the claim of a caller that left stays until its lease runs out", "error", err)
	}
}

// readBegin turns the row that rows is at into an outcome. errBusy: another caller was quicker.
func readBegin(rows pgx.Rows, req *idem.Request) (idem.Outcome, error) {
	var r record
	if err := r.scan(rows); err != nil {
		return idem.Outcome{}, err
	}
	switch {
	case r.fingerprint == nil && !r.token.Valid:
		return idem.Outcome{}, errBusy
	case r.fingerprint == nil:
		return granted(req, r.token.Int64), nil
	case !bytes.Equal(r.fingerprint, req.Fingerprint[:]):
		return idem.Outcome{State: idem.Mismatch}, nil
	}
	out := idem.Outcome{State: r.state()}
	switch out.State {
	case idem.InProgress:
		out.Remaining = r.until(r.leaseUntil.Time)
	case idem.Replay:
		out.Response = r.response(req.Buf)
	default:
	}
	return out, nil
}
