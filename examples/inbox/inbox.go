package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

var (
	errNoFunds = errors.New("the account cannot be reached")
	errLost    = errors.New("connection lost after the commit")
)

// An inbox makes payments in a database.
type inbox struct {
	pool  *pgxpool.Pool
	store *pgstore.Store

	runs, rolledBack, forgotten atomic.Int64
}

// handle makes the payment of one message. The three statements are one transaction, so that there is never one of
// them without the others: an owner that lost its claim gets an error from CompleteTx, and what it did is undone.
//
// What is announced is sent by whoever reads the outbox: in the order of its numbers, with the payment's ID as the
// message's, and deleted once the broker has it. It is sent at least once, and its consumers have inboxes.
func (b *inbox) handle(ctx context.Context, m msgidem.Message, c idem.Claim) error {
	run := b.runs.Add(1)
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO payments (id, cents) VALUES ($1, $2)`, m.ID, 1250); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO outbox (payment) VALUES ($1)`, m.ID); err != nil {
			return err
		}
		if run%7 == 0 {
			b.rolledBack.Add(1)
			return errNoFunds // both rows are rolled back, and the message comes again
		}
		return b.store.CompleteTx(ctx, tx, c, idem.Response{})
	})
	if err == nil && run%5 == 0 {
		// As if this process had died between its commit and its acknowledgement: the message comes again.
		b.forgotten.Add(1)
		return errLost
	}
	return err
}

// consume handles messages until ctx ends.
func (b *inbox) consume(ctx context.Context, consumer jetstream.Consumer, o options) (msgidem.Stats, error) {
	source, err := natsidem.New(ctx, consumer, natsidem.Config{})
	if err != nil {
		return msgidem.Stats{}, err
	}
	handler, err := msgidem.New(b.store, b.handle, msgidem.Config{
		Workers: o.workers, MaxAttempts: 100, Backoff: func(int) time.Duration { return 10 * time.Millisecond },
	})
	if err != nil {
		return msgidem.Stats{}, err
	}
	if err := handler.Run(ctx, source); err != nil {
		return msgidem.Stats{}, err
	}
	return handler.Stats(), source.Close()
}

// count looks at what is in the database in the end.
func (b *inbox) count(ctx context.Context, r *report) error {
	return b.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM payments), (SELECT count(DISTINCT id) FROM payments),
		(SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox WHERE payment NOT IN (SELECT id FROM payments))`).
		Scan(&r.payments, &r.distinct, &r.announced, &r.other)
}
