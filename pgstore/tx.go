package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed-5bb5eb37/idem"
)

// ErrCompleted is returned by [Store.CompleteTx] for a claim whose response is recorded: the transaction that did so was
// committed, though its caller may have been told otherwise when the connection broke. It is an [idem.ErrClaimLost], so that
// whoever does not know it rolls back; who does may go on as if it had committed.
var ErrCompleted = fmt.Errorf("%w: it was completed before, with the effect of that transaction", idem.ErrClaimLost)

// BeginTx is Begin within tx, for an operation whose effects are all in this database: with [Store.CompleteTx] in the
// same transaction the claim, the effects and the response are there together or not at all. Whoever begins the key
// meanwhile blocks until tx ends; set lock_timeout if that may be long. When tx is rolled back the key is free.
//
// Request.Wait is an error: a transaction must not be kept open to wait. An error of the server's, a serialization
// failure (SQLSTATE 40001) or a lock_timeout (55P03) for instance, leaves tx of no use: roll it back, and begin anew.
func (s *Store) BeginTx(ctx context.Context, tx pgx.Tx, req idem.Request) (idem.Outcome, error) {
	if err := s.checkBegin(ctx, &req); err != nil {
		return idem.Outcome{}, err
	}
	if req.Wait {
		return idem.Outcome{}, errors.New("pgstore: Request.Wait is set, but BeginTx does not wait")
	}
	args := s.beginArgs(&req, newNonce())
	var tries retrier
	for {
		out, err := askTx(ctx, tx, s.queries.begin, args, &req)
		if err == nil {
			return out, nil
		}
		// Each try is a look at the table as it is by then, unless tx looks at it as it was when tx began.
		if !errors.Is(err, errBusy) || !tries.conflict(ctx) {
			return idem.Outcome{}, failed(ctx, err)
		}
	}
}

func askTx(ctx context.Context, tx pgx.Tx, query string, args []any, req *idem.Request) (idem.Outcome, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return idem.Outcome{}, err
	}
	defer rows.Close()
	rows.Next()
	if err = rows.Err(); err != nil {
		return idem.Outcome{}, err
	}
	out, err := readBegin(rows, req)
	rows.Close()
	return out, errors.Join(err, rows.Err())
}

// CompleteTx is Complete within tx: the response is recorded when tx commits, and not if it doesn't. With the effects
// of the operation in tx as well, that makes it run exactly once: an owner whose claim was lost gets
// [idem.ErrClaimLost] and has to roll back, which undoes what it wrote. tx can be used after that error, too; after
// one of the server's it cannot.
//
// A response that is too large is recorded without its body, and that is no error here, unlike Complete's
// [idem.ErrTruncated]: the operation ran, and an error would have its effects rolled back. Replays of it are Truncated.
//
// Unlike Complete it does not return nil for a claim that was completed before, but [ErrCompleted]: that would let the
// effect be committed a second time, by who runs a transaction again whose commit ended with a lost connection, or by two
// workers who were handed one claim.
//
// From CompleteTx until tx ends, whoever would take the key over blocks, so let Commit come soon.
func (s *Store) CompleteTx(ctx context.Context, tx pgx.Tx, c idem.Claim, resp idem.Response) error {
	if err := s.checkClaim(ctx, &c); err != nil {
		return err
	}
	if _, err := s.checkResponse(&resp); err != nil { // what is too large is cut
		return err
	}
	ch := s.completion(&c, &resp)
	ch.completed = ErrCompleted
	if err := s.settleTx(ctx, tx, &c, ch); err != nil {
		return err
	}
	if s.hints != nil {
		if err := s.hints.announce(ctx, tx, c.Scope, c.Key); err != nil {
			return failed(ctx, err)
		}
	}
	return nil
}

// settleTx is settle within a transaction, which an error of the server's ends.
func (s *Store) settleTx(ctx context.Context, tx pgx.Tx, c *idem.Claim, ch change) error {
	var tries retrier
	for {
		err := s.trySettle(ctx, tx, c, &ch)
		switch {
		case err == nil, errors.Is(err, idem.ErrClaimLost):
			return err
		case !errors.Is(err, errBusy) || !tries.conflict(ctx):
			return failed(ctx, err)
		}
	}
}
