package idem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// The contract by hand: who gets the claim runs the operation, and completes or abandons it.
func ExampleEngine_Begin() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	pay := func(ctx context.Context, req idem.Request) error {
		out, err := engine.Begin(ctx, req)
		if err != nil {
			return err
		}
		switch out.State {
		case idem.Fresh:
			// Does nothing after Complete, so it is safe to defer.
			defer func() { _ = engine.Abandon(ctx, out.Claim) }()
			fmt.Println("charge the card")
			return engine.Complete(ctx, out.Claim, idem.Response{Status: 201, Body: []byte(`{"id":1}`)})
		case idem.Replay:
			fmt.Printf("replay: %d %s\n", out.Response.Status, out.Response.Body)
		default:
			fmt.Println(out.State)
		}
		return nil
	}

	ctx := context.Background()
	first := idem.Request{Scope: "tenant-7", Key: "order-1", Fingerprint: idem.FingerprintOf([]byte("10 EUR"))}
	other := idem.Request{Scope: "tenant-7", Key: "order-1", Fingerprint: idem.FingerprintOf([]byte("99 EUR"))}
	for _, req := range []idem.Request{first, first, other} {
		if err := pay(ctx, req); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// charge the card
	// replay: 201 {"id":1}
	// mismatch
}

// A restart: the engine of the next process has what the last one knew.
func ExampleEngine_SnapshotFile() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "idem.snapshot")

	process := func() error {
		engine, err := idem.New(idem.Config{})
		if err != nil {
			return err
		}
		defer func() { _ = engine.Close() }()
		err = engine.RestoreFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		resp, err := idem.Do(context.Background(), engine, idem.Request{Key: "order-1"},
			func(context.Context, idem.Claim) (idem.Response, error) {
				fmt.Println("charge the card")
				return idem.Response{Status: 201, Body: []byte(`{"id":1}`)}, nil
			})
		fmt.Println(resp.Status, err)
		return errors.Join(err, engine.SnapshotFile(file)) // when no request runs any more
	}
	for range 2 {
		if err := process(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// charge the card
	// 201 <nil>
	// 201 <nil>
}

// Do takes care of the claim: it extends the lease while the function runs, records its response, and
// releases the key when it fails.
func ExampleDo() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	attempts := 0
	charge := func(context.Context, idem.Claim) (idem.Response, error) {
		attempts++
		if attempts == 1 {
			return idem.Response{}, errors.New("connection to the bank broke")
		}
		return idem.Response{Status: 201, Body: []byte(`{"id":1}`)}, nil
	}
	req := idem.Request{Scope: "tenant-7", Key: "order-1"}
	for range 3 {
		resp, err := idem.Do(context.Background(), engine, req, charge)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%d %s\n", resp.Status, resp.Body)
	}
	fmt.Println("attempts:", attempts)
	// Output:
	// connection to the bank broke
	// 201 {"id":1}
	// 201 {"id":1}
	// attempts: 2
}

// Without Wait a duplicate is turned away while the operation runs; with it, it gets the owner's response.
func ExampleDo_waitingDuplicates() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	never := func(context.Context, idem.Claim) (idem.Response, error) { panic("a duplicate ran") }
	var duplicates sync.WaitGroup
	_, err = idem.Do(ctx, engine, idem.Request{Key: "order-1"}, func(context.Context, idem.Claim) (idem.Response, error) {
		_, refused := idem.Do(ctx, engine, idem.Request{Key: "order-1"}, never)
		if inProgress := new(idem.InProgressError); errors.As(refused, &inProgress) {
			fmt.Println("try again in", inProgress.Remaining.Round(time.Second))
		}
		for range 3 {
			duplicates.Go(func() {
				resp, failure := idem.Do(ctx, engine, idem.Request{Key: "order-1", Wait: true}, never)
				fmt.Println(string(resp.Body), failure)
			})
		}
		for tick := time.Tick(time.Millisecond); engine.Stats().Waiting < 3 && ctx.Err() == nil; {
			<-tick
		}
		return idem.Response{Body: []byte("the owner's answer")}, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	duplicates.Wait()
	// Output:
	// try again in 30s
	// the owner's answer <nil>
	// the owner's answer <nil>
	// the owner's answer <nil>
}

// Call is Do for a Go value.
func ExampleCall() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	type receipt struct {
		ID     int
		Amount string
	}
	charges := 0
	charge := func(context.Context, idem.Claim) (receipt, error) {
		charges++
		return receipt{ID: charges, Amount: "10 EUR"}, nil
	}
	for range 3 {
		r, err := idem.Call(context.Background(), engine, idem.Request{Key: "order-1"}, charge)
		fmt.Println(r, err)
	}
	// Output:
	// {1 10 EUR} <nil>
	// {1 10 EUR} <nil>
	// {1 10 EUR} <nil>
}

// A failure that no retry can mend is a result: it is recorded and replayed.
func ExamplePermanent() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	errDeclined := errors.New("card declined")
	charge := func(context.Context, idem.Claim) (int, error) {
		fmt.Println("ask the bank")
		return 0, idem.Permanent(errDeclined)
	}
	for range 2 {
		_, err := idem.Call(context.Background(), engine, idem.Request{Key: "order-1"}, charge)
		var failed *idem.FailedError
		fmt.Println(err, errors.As(err, &failed))
	}
	// Output:
	// ask the bank
	// card declined true
	// card declined true
}

// A ledger refuses an owner that lost its claim and does not know it yet: it keeps the highest token that it has
// seen, and takes no write with a lower one.
func ExampleClaim_token() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	var highest uint64
	write := func(entry string, token uint64) {
		if token < highest {
			fmt.Println("refused:", entry)
			return
		}
		highest = token
		fmt.Println("written:", entry)
	}

	ctx := context.Background()
	req := idem.Request{Key: "order-1", Lease: time.Millisecond}
	slow, err := engine.Begin(ctx, req) // and then its process stands still for longer than the lease
	if err != nil {
		fmt.Println(err)
		return
	}
	req.Lease, req.Wait = time.Minute, true
	next, err := engine.Begin(ctx, req) // waits until the lease has run out
	if err != nil {
		fmt.Println(err)
		return
	}
	write("10 EUR by the next owner", next.Claim.Token)
	write("10 EUR by the slow owner", slow.Claim.Token)
	err = engine.Complete(ctx, slow.Claim, idem.Response{})
	fmt.Println(errors.Is(err, idem.ErrClaimLost))
	// Output:
	// written: 10 EUR by the next owner
	// refused: 10 EUR by the slow owner
	// true
}
