// Package pgstore keeps the records of package idem in Postgres, 13 or later, so that an operation that clients
// retry runs once however many processes serve them.
//
//	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
//	...
//	err = pgstore.Migrate(ctx, pool, "")
//	...
//	store, err := pgstore.New(pool, pgstore.Config{})
//	...
//	resp, err := idem.Do(ctx, store, idem.Request{Scope: "ann", Key: "order-7"}, charge)
//
// # Exactly once
//
// An effect in another system can happen and its record be lost: the process may die in between. An effect in the same
// database cannot, if both are committed together: [Store.CompleteTx] records the response in the transaction that
// has the effect. When the claim was lost meanwhile, it returns [idem.ErrClaimLost] and the transaction is rolled back.
// Inside [idem.Do] that is all there is to it; the Complete that follows finds the response recorded. A response that is
// too large to keep is recorded cut, and is no reason to roll back.
//
// When all effects are in this database, [Store.BeginTx] puts the claim into that transaction as well. That is one
// commit instead of two, but rivals wait for the transaction to end rather than being told that it runs.
//
// # What is kept, and where
//
// A schema, "idem" unless [Config] says otherwise, has a table records with one row per scope and key, and a view
// overview that shows them as a person wants to see them. [Migrate] makes them, or [Schema] prints what it would run.
// Times are the server's, and exact to the microsecond; no statement is ever given a time of day. Tokens are drawn
// from a sequence.
//
// Begin and Complete are a round trip each, with no lock but the row's own. Begin guesses by the keys that came before whether
// the next one is new, and is two round trips when the guess is wrong. Nothing of a session is used, so that
// they work through a pooler such as pgbouncer in transaction mode; set [Config].PollOnly there, and a query mode
// without prepared statements if the pooler wants it.
//
// # Waiting
//
// Callers that wait for the same key in one process share one look at the table. Completed keys are passed on to
// other processes by NOTIFY, those of some milliseconds together, and only while somebody waits. That may be lost,
// so those who wait also look by themselves: after 25 ms, when the lease ends, and at least every five seconds.
//
// # Cleaning up
//
// A record that has expired is as good as absent, whether its row is there or not. [Store.Clean] deletes such rows: call
// it from cron, or have [Store.StartCleaner] call it.
package pgstore
