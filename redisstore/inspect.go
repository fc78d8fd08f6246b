package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/seed-5bb5eb37/idem"
)

// Lookup implements [idem.Inspector].
func (s *Store) Lookup(ctx context.Context, scope, key string) (idem.Record, bool, error) {
	name, err := s.check(ctx, scope, key)
	if err != nil {
		return idem.Record{}, false, err
	}
	text, err := s.call(ctx, lookup, name, s.gone.packed)
	if err != nil || text == "N" {
		return idem.Record{}, false, err
	}
	rec := idem.Record{Scope: scope, Key: key}
	if err := record(text, name, &rec); err != nil {
		return idem.Record{}, false, err
	}
	return rec, true, nil
}

// Forget implements [idem.Inspector].
func (s *Store) Forget(ctx context.Context, scope, key string) (bool, error) {
	name, err := s.check(ctx, scope, key)
	if err != nil {
		return false, err
	}
	text, err := s.call(ctx, forget, name, s.gone.operator(rand.Uint64()))
	if err != nil {
		return false, err
	}
	s.room.Hint(scope, key)
	if err := verdict(text); !errors.Is(err, idem.ErrNoClaim) {
		return err == nil, err
	}
	return false, nil
}

// Resolve implements [idem.Inspector]. A response that is larger than Config.MaxResponseBytes is recorded as
// Truncated, and the error is [idem.ErrTruncated].
func (s *Store) Resolve(ctx context.Context, scope, key string, resp idem.Response) error {
	name, err := s.check(ctx, scope, key)
	if err != nil {
		return err
	}
	tooLarge, err := s.fit(&resp)
	if err != nil {
		return err
	}
	ttl := s.ttlOf(resp.TTL)
	text, err := s.call(ctx, resolve, name, ttl.operator(rand.Uint64(), ttl.done), packResponse(&resp))
	if err != nil {
		return err
	}
	s.room.Hint(scope, key)
	if err := verdict(text); err != nil {
		return err
	}
	return tooLarge
}
