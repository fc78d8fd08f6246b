package pgstore

import (
	"context"

	"github.com/seed-5bb5eb37/idem"
)

// BeginAs is Begin without Wait, with a nonce of the caller's choice.
func (s *Store) BeginAs(ctx context.Context, nonce int64, req idem.Request) (idem.Outcome, error) {
	if err := s.checkBegin(ctx, &req); err != nil {
		return idem.Outcome{}, err
	}
	return s.begin(ctx, &req, nonce)
}

// Waiting returns how many callers wait.
func (s *Store) Waiting() int { return s.room.Waiting() }

// Listening tells whether the store hears notifications.
func (s *Store) Listening() bool { return s.hints.present.Load() != forever }

// CleanSQL is the statement of one batch of Clean.
func (s *Store) CleanSQL() string { return s.queries.clean }
