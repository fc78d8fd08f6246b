package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed-5bb5eb37/idem"
)

// Lookup implements [idem.Inspector].
func (s *Store) Lookup(ctx context.Context, scope, key string) (idem.Record, bool, error) {
	if err := s.checkLook(ctx, scope, key); err != nil {
		return idem.Record{}, false, err
	}
	tries := retrier{pool: s.pool}
	for {
		rec, found, err := s.lookup(ctx, scope, key)
		if err == nil {
			return rec, found, nil
		}
		if !tries.again(ctx, err) {
			return idem.Record{}, false, failed(ctx, err)
		}
	}
}

func (s *Store) lookup(ctx context.Context, scope, key string) (rec idem.Record, found bool, err error) {
	_, found, err = s.find(ctx, s.pool, scope, key, func(r *record) {
		rec = idem.Record{
			Scope: scope, Key: key, State: r.state(), Token: uint64(r.token.Int64), Since: r.created, Remaining: r.until(r.expires),
		}
		copy(rec.Fingerprint[:], r.fingerprint)
		switch rec.State {
		case idem.InProgress:
			rec.Remaining = r.until(r.leaseUntil.Time)
		case idem.Replay:
			rec.Since, rec.Response = r.completed.Time, r.response(nil)
		default:
		}
	})
	if err != nil || !found {
		return idem.Record{}, false, err
	}
	return rec, true, nil
}

// Forget implements [idem.Inspector]. The response is erased at once. A tombstone with scope, key and token, as in
// the overview with the state free, stays until it is cleaned up.
func (s *Store) Forget(ctx context.Context, scope, key string) (bool, error) {
	if err := s.checkLook(ctx, scope, key); err != nil {
		return false, err
	}
	tag, err := s.step(ctx, s.queries.forget, escape(scope), escape(key))
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	s.changed(scope, key)
	return true, nil
}

// Resolve implements [idem.Inspector].
func (s *Store) Resolve(ctx context.Context, scope, key string, resp idem.Response) error {
	if err := s.checkLook(ctx, scope, key); err != nil {
		return err
	}
	tooLarge, err := s.checkResponse(&resp)
	if err != nil {
		return err
	}
	tag, err := s.step(ctx, s.queries.resolve, escape(scope), escape(key), stateOf(&resp), int32(resp.Status), resp.Truncated,
		notNil(resp.Header), notNil(resp.Body), micros(orDefault(resp.TTL, s.cfg.TTL)))
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: the key is absent or done", idem.ErrNoClaim)
	}
	s.changed(scope, key)
	return tooLarge
}

// step runs a statement of an operator. It is not sent again when a connection breaks: the second answer would be
// about the first one's work.
func (s *Store) step(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	var tries retrier
	for {
		tag, err := s.pool.Exec(ctx, query, args...)
		if err == nil {
			return tag, nil
		}
		if !isConflict(err) || !tries.again(ctx, err) {
			return tag, failed(ctx, err)
		}
	}
}

func (s *Store) checkLook(ctx context.Context, scope, key string) error {
	if err := s.check(ctx, scope, key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
