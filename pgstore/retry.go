package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

const (
	// maxConflicts bounds how often a statement is run again that lost to another transaction. Each time one of them
	// gets on, so this many are not met but by accident; the bound is there against a server that lies.
	maxConflicts = 100

	// maxBreaks bounds how often a statement is run again whose connection broke, not counting those that may have died
	// idle. It covers a connection that died with a reply on it, not a server that is gone: that is an error, at once.
	maxBreaks = 3

	// calmConflicts is how many conflicts are met with no pause.
	calmConflicts = 2

	longestPause = 50 * time.Millisecond
)

// SQLSTATEs, see appendix A of Postgres' manual.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	undefinedTable       = "42P01"
	undefinedSchema      = "3F000"
	undefinedFunction    = "42883"
	crashShutdown        = "57P02"
	adminShutdown        = "57P01"
	connectionException  = "08" // the class; what poolers call a server that they have lost
)

// A retrier counts what failed. Every statement that goes through one may be carried out twice.
type retrier struct {
	pool              *pgxpool.Pool // nil: the connection is always the same
	conflicts, breaks int
	idle              int // how many connections were idle when the first one broke: a server that restarts ends them all
}

// again tells whether to run a statement again that ended with err, having paused for as long as is apt.
func (r *retrier) again(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case isConflict(err):
		return r.conflict(ctx)
	case isBroken(err):
		return r.broken(ctx)
	}
	return false
}

// broken is again for a statement whose connection broke.
func (r *retrier) broken(ctx context.Context) bool {
	r.breaks++
	if r.breaks == 1 && r.pool != nil {
		r.idle = int(r.pool.Stat().IdleConns())
	}
	n := r.breaks - r.idle
	return n <= 0 || n <= maxBreaks && pause(ctx, time.Duration(n)*10*time.Millisecond)
}

// conflict is again for a statement that another one got ahead of.
func (r *retrier) conflict(ctx context.Context) bool {
	r.conflicts++
	if r.conflicts <= calmConflicts {
		return ctx.Err() == nil
	}
	return r.conflicts <= maxConflicts && pause(ctx, min(time.Millisecond<<min(r.conflicts, 10), longestPause))
}

// pause sleeps for d/2 to d, so that those that met part. It returns false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isConflict reports whether err says that the transaction lost to another one and may be run again.
func isConflict(err error) bool {
	state := sqlState(err)
	return state == serializationFailure || state == deadlockDetected
}

// isBroken reports whether err is about the connection and not about the statement, which may have been carried out
// or not.
func isBroken(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.SeverityUnlocalized == "FATAL" {
		return true
	}
	switch state := sqlState(err); {
	case state == adminShutdown, state == crashShutdown, strings.HasPrefix(state, connectionException):
		return true
	case state != "", errors.Is(err, puddle.ErrClosedPool):
		return false
	}
	return err != nil
}

// sqlState returns what the server called the error, or nothing if it did not come from there.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// failed is how err, which a statement ended with, is reported.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch sqlState(err) {
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("pgstore: the schema is not what it should be, run pgstore.Migrate: %w", err)
	}
	return fmt.Errorf("pgstore: %w", err)
}
