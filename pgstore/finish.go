package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-5bb5eb37/idem"
)

// finishTimeout bounds what ends a claim, which the end of the caller's ctx does not.
const finishTimeout = 5 * time.Second

// A database is what statements run on: a pool, or a transaction of the caller's.
type database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Complete implements [idem.Store]. It is one round trip while the claim is current. That ctx was cancelled does not
// stop it; a deadline that lies ahead does, and so do five seconds.
func (s *Store) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if err := s.checkClaim(ctx, &c); err != nil {
		return err
	}
	tooLarge, err := s.checkResponse(&resp)
	if err != nil {
		return err
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := s.settle(ctx, s.pool, &c, s.completion(&c, &resp)); err != nil {
		return err
	}
	s.changed(c.Scope, c.Key)
	return tooLarge
}

// Abandon implements [idem.Store], with a ctx as Complete's.
func (s *Store) Abandon(ctx context.Context, c idem.Claim) error {
	if c.Token == 0 && ctx != nil {
		return nil
	}
	if err := s.checkClaim(ctx, &c); err != nil {
		return err
	}
	return s.abandon(ctx, c)
}

// abandon is Abandon of a claim that is right, of a store that may be closed.
func (s *Store) abandon(ctx context.Context, c idem.Claim) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := s.settle(ctx, s.pool, &c, s.abandonment(&c)); err != nil {
		return err
	}
	s.changed(c.Scope, c.Key)
	return nil
}

// Extend implements [idem.Store], with a ctx as Complete's. It is one round trip while the claim is current.
func (s *Store) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	if err := s.checkClaim(ctx, &c); err != nil {
		return err
	}
	if lease < 0 {
		return fmt.Errorf("pgstore: lease is %v, want zero or more", lease)
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := s.settle(ctx, s.pool, &c, s.extension(&c, orDefault(lease, s.cfg.Lease))); err != nil {
		return err
	}
	// Those who wait here see at once what the lease is now. For the others their next look is soon enough: most
	// leases are extended so that nothing changes.
	s.room.Hint(c.Scope, c.Key)
	return nil
}

// finishing returns the context of what must happen although the caller may have been cancelled: it keeps nothing of
// ctx but its values and a deadline that lies ahead.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(finishTimeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) && ctx.Err() == nil {
		end = deadline
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// A change is what an owner does to its record.
type change struct {
	// update changes the record while the claim is the key's current one and not completed.
	update string
	args   []any

	// restore makes the record again when it is gone. Empty means that there is nothing to do then.
	restore     string
	restoreArgs []any

	// completed is what comes of it when the claim was completed before.
	completed error
}

func (s *Store) completion(c *idem.Claim, resp *idem.Response) change {
	state := stateOf(resp)
	scope, key, ttl := escape(c.Scope), escape(c.Key), micros(orDefault(resp.TTL, s.cfg.TTL))
	header, body := notNil(resp.Header), notNil(resp.Body)
	return change{
		update:  s.queries.complete,
		args:    []any{scope, key, int64(c.Token), state, int32(resp.Status), resp.Truncated, header, body, ttl},
		restore: s.queries.restore,
		restoreArgs: []any{
			scope, key, int64(c.Token), state, int32(resp.Status), resp.Truncated, header, body,
			int64(0), ttl, ttl, c.Fingerprint[:],
		},
	}
}

func (s *Store) abandonment(c *idem.Claim) change {
	return change{update: s.queries.abandon, args: []any{escape(c.Scope), escape(c.Key), int64(c.Token)}}
}

func (s *Store) extension(c *idem.Claim, lease time.Duration) change {
	scope, key := escape(c.Scope), escape(c.Key)
	leaseMicros := micros(lease)
	counts := leaseMicros + micros(s.hold())
	return change{
		update:  s.queries.extend,
		args:    []any{scope, key, int64(c.Token), leaseMicros, counts},
		restore: s.queries.restore,
		restoreArgs: []any{
			scope, key, int64(c.Token), "processing", int32(0), false, []byte{}, []byte{},
			leaseMicros, counts, leaseMicros + micros(s.cfg.TTL), c.Fingerprint[:],
		},
		completed: fmt.Errorf("%w: it was completed", idem.ErrClaimLost),
	}
}

func stateOf(resp *idem.Response) string {
	if resp.Failed {
		return "failed"
	}
	return "completed"
}

// notNil makes nil, which would be NULL, empty.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// settle carries out a change, as often as it takes. What it sends may be carried out twice: the second time changes
// nothing, or the same once more.
func (s *Store) settle(ctx context.Context, db database, c *idem.Claim, ch change) error {
	tries := retrier{pool: s.pool}
	for {
		err := s.trySettle(ctx, db, c, &ch)
		switch {
		case err == nil, errors.Is(err, idem.ErrClaimLost):
			return err
		case errors.Is(err, errBusy):
			if !tries.conflict(ctx) {
				return failed(ctx, err)
			}
		case !tries.again(ctx, err):
			return failed(ctx, err)
		}
	}
}

// trySettle is settle, once. errBusy: the record changed while it was looked at.
func (s *Store) trySettle(ctx context.Context, db database, c *idem.Claim, ch *change) error {
	tag, err := db.Exec(ctx, ch.update, ch.args...)
	if err != nil || tag.RowsAffected() > 0 {
		return err
	}
	// The claim is not current, or done. What counts from here on is the record as it is now.
	r, found, err := s.find(ctx, db, c.Scope, c.Key, nil)
	switch {
	case err != nil:
		return err
	case found && r.token.Int64 != int64(c.Token):
		return fmt.Errorf("%w: token %d has the key now", idem.ErrClaimLost, r.token.Int64)
	case found && r.completed.Valid:
		return ch.completed
	case found:
		return errBusy // it is the current one after all
	case ch.restore == "":
		return nil
	}
	tag, err = db.Exec(ctx, ch.restore, ch.restoreArgs...)
	if err == nil && tag.RowsAffected() == 0 {
		return errBusy
	}
	return err
}

// find returns the live record of a key, having passed it to read while its bytes are there. read may be nil.
func (s *Store) find(ctx context.Context, db database, scope, key string, read func(*record)) (r record, found bool, err error) {
	rows, err := db.Query(ctx, s.queries.lookup, escape(scope), escape(key))
	if err != nil {
		return record{}, false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return record{}, false, rows.Err()
	}
	if err := r.scan(rows); err != nil {
		return record{}, false, err
	}
	if read != nil {
		read(&r)
	}
	rows.Close()
	return r, true, rows.Err()
}
