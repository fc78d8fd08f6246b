package pgstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// open connects to the database of the tests. A program would call pgxpool.New and [pgstore.Migrate] there.
func open(cfg pgstore.Config) (pool *pgxpool.Pool, store *pgstore.Store, done func()) {
	pool, err := pgxpool.New(context.Background(), databaseURL)
	if err != nil {
		panic(err)
	}
	cfg.Schema = schema
	store, err = pgstore.New(pool, cfg)
	if err != nil {
		panic(err)
	}
	return pool, store, func() {
		_ = store.Close()
		pool.Close()
	}
}

// A charge that is made once for each order, however often it is asked for: the row and the response are committed
// together.
func Example() {
	ctx := context.Background()
	pool, store, done := open(pgstore.Config{})
	defer done()
	if _, err := pool.Exec(ctx, `CREATE TABLE example_charges (order_id text, cents int)`); err != nil {
		panic(err)
	}
	defer func() { _, _ = pool.Exec(ctx, `DROP TABLE example_charges`) }()

	charge := func(ctx context.Context, claim idem.Claim) (idem.Response, error) {
		resp := idem.Response{Status: 201, Body: []byte(`{"cents":1250}`)}
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO example_charges VALUES ($1, $2)`, claim.Key, 1250); err != nil {
				return err
			}
			return store.CompleteTx(ctx, tx, claim, resp)
		})
		return resp, err
	}
	for range 3 {
		resp, err := idem.Do(ctx, store, idem.Request{Scope: "ann", Key: "order-7"}, charge)
		fmt.Println(resp.Status, string(resp.Body), err)
	}
	var n int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM example_charges`).Scan(&n); err != nil {
		panic(err)
	}
	fmt.Println("charges:", n)
	// Output:
	// 201 {"cents":1250} <nil>
	// 201 {"cents":1250} <nil>
	// 201 {"cents":1250} <nil>
	// charges: 1
}

// An operation whose effects are all in this database needs one transaction in all. When it is rolled back, it was
// never begun.
func ExampleStore_BeginTx() {
	ctx := context.Background()
	pool, store, done := open(pgstore.Config{})
	defer done()

	once := func(fail bool) {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			out, err := store.BeginTx(ctx, tx, idem.Request{Scope: "example", Key: "nightly-close"})
			if err != nil || out.State != idem.Fresh {
				fmt.Println(out.State, string(out.Response.Body))
				return err
			}
			// The statements with the effects go here.
			if fail {
				return fmt.Errorf("out of luck")
			}
			return store.CompleteTx(ctx, tx, out.Claim, idem.Response{Body: []byte("closed")})
		})
		fmt.Println("error:", err)
	}
	once(true)
	once(false)
	once(false)
	// Output:
	// error: out of luck
	// error: <nil>
	// replay closed
	// error: <nil>
}

// Duplicates in other processes wait for the owner, and get its response.
func ExampleStore_Begin() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, here, done := open(pgstore.Config{})
	defer done()
	_, there, done := open(pgstore.Config{})
	defer done()

	req := idem.Request{Scope: "example", Key: "report-3"}
	owner, err := here.Begin(ctx, req)
	if err != nil {
		panic(err)
	}
	fmt.Println("here:", owner.State)
	answer := make(chan idem.Outcome)
	go func() {
		req.Wait = true
		out, err := there.Begin(ctx, req)
		if err != nil {
			panic(err)
		}
		answer <- out
	}()
	if err := here.Complete(ctx, owner.Claim, idem.Response{Body: []byte("42 pages")}); err != nil {
		panic(err)
	}
	out := <-answer
	fmt.Println("there:", out.State, string(out.Response.Body))
	// Output:
	// here: fresh
	// there: replay 42 pages
}
