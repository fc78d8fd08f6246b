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
	return s.begin(ctx, &req, nonce, s.forecast.isNew(), true)
}

// Waiting returns how many callers wait.
func (s *Store) Waiting() int { return s.room.Waiting() }

// Listening tells whether the store hears notifications.
func (s *Store) Listening() bool { return s.hints.present.Load() != forever }

// CleanSQL is the statement of one batch of Clean.
func (s *Store) CleanSQL() string { return s.queries.clean }

// Undo gives up, in the background, what a Begin was granted that had the nonce.
func (s *Store) Undo(ctx context.Context, nonce int64, scope, key string) (started bool) {
	return s.undo(ctx, scope, key, nonce)
}

// TryUndo is one try of that.
func (s *Store) TryUndo(ctx context.Context, nonce int64, scope, key string) error {
	return s.tryUndo(ctx, scope, key, nonce)
}

// Undoing returns how many goroutines give up claims.
func (s *Store) Undoing() int { return len(s.undoing) }

// NextBatch is how many rows Clean takes after a batch.
var NextBatch = nextBatch
