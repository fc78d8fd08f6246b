package redisstore

import (
	"context"
	"errors"
	"fmt"
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
	nonce := rand.Uint64()
	text, err := s.aim(ctx, forget, name, func(token uint64) string { return s.gone.operator(nonce, token) })
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
	ttl, nonce := s.ttlOf(resp.TTL), rand.Uint64()
	text, err := s.aim(ctx, resolve, name, func(token uint64) string { return ttl.operator(nonce, token, ttl.done) }, packResponse(&resp))
	if err != nil {
		return err
	}
	s.room.Hint(scope, key)
	if err := verdict(text); err != nil {
		return err
	}
	return tooLarge
}

// aim runs an operator's action on the record that is there, by its token. A copy of the script that a server comes to
// late, over a line that was given up, then finds another token, and leaves what the next owner does alone.
func (s *Store) aim(ctx context.Context, a *action, name string, first func(token uint64) string, rest ...string) (string, error) {
	for {
		text, err := s.call(ctx, lookup, name, s.gone.packed)
		if err != nil || text == "N" {
			return text, err
		}
		if len(text) < lookupHead+claimSize {
			return "", fmt.Errorf("%w: %.20q", errReply, text)
		}
		text, err = s.call(ctx, a, name, append([]string{first(uint64At(text, lookupHead+atToken))}, rest...)...)
		if err != nil || text != "L" {
			return text, err
		}
		// Somebody else was quicker and has the key now: it is to be done to that record.
	}
}
