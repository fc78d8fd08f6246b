package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// serveLease is short, so that the page shows the heartbeats that extend it.
const serveLease = 10 * time.Second

// A service is the command serve: the payments API, the middleware in front of it, and the page.
type service struct {
	addr string        // where to listen
	wait time.Duration // how long duplicates wait; [httpidem.Config]
	keep string        // a file for the engine's records, or empty
}

// serveCommand lets duplicates wait for two seconds unless it is told otherwise: long enough for them to get
// the answer of a usual payment, short enough to see the 409 of a slow one.
func serveCommand() command {
	return command{
		name: "serve",
		about: "Serves a small payments API behind the middleware httpidem, and a page that shows live what becomes\n" +
			"of the requests. Prints the curl lines to try. Ctrl-C ends it.",
		setup: func(flags *flag.FlagSet) action {
			s := &service{addr: "127.0.0.1:8080", wait: 2 * time.Second}
			flags.Var((*address)(&s.addr), "addr", "`host:port` to listen at; port 0 takes a free one")
			flags.Var(timeWithin(&s.wait, 0, time.Minute), "wait",
				"`duration` that a duplicate waits for the first request before it is told 409, 0s to 1m")
			flags.StringVar(&s.keep, "keep", "",
				"a `file` that the engine's records are written to at the end and read from at the start, so that no payment is made\n"+
					"again after a restart; the ledger begins anew")
			return s.run
		},
	}
}

// run serves until ctx ends. That is how it is meant to end, and no failure. Payments that run are finished
// first. There are few shards, so that the page can show each.
func (s *service) run(ctx context.Context, stdout, stderr io.Writer) error {
	return withEngine(idem.Config{Shards: 8, Lease: serveLease}, func(e *idem.Engine) error {
		closing := make(chan struct{})
		payments := newAPI()
		if err := s.restore(e, payments.books, stdout); err != nil {
			return err
		}
		h, err := s.handler(e, payments, closing)
		if err != nil {
			return err
		}
		server, err := listen(s.addr, h)
		if err != nil {
			return fmt.Errorf("-addr %s: %w", s.addr, err)
		}
		if host, _, _ := net.SplitHostPort(s.addr); !isLoopback(host) {
			fmt.Fprintln(stderr, "idemdemo: whoever can reach this address can use the server; the default is 127.0.0.1:8080")
		}
		fmt.Fprint(stdout, strings.ReplaceAll(guide, "URL", server.url))
		<-ctx.Done()
		close(closing)
		if n := e.Stats().InProgress; n > 0 {
			fmt.Fprintf(stdout, "payments to finish: %d; Ctrl-C again stops at once\n", n)
		}
		err = errors.Join(server.shut(), s.save(e))
		fmt.Fprintf(stdout, "stopped; charges: %s, replays: %s\n",
			grouped(payments.books.total()), grouped(int(e.Stats().Replayed)))
		return err
	})
}

// restore takes in what an earlier run has kept; the first one finds nothing. It writes the file at once, so that a place
// where that cannot be done is noticed now. The ledger is not kept, but it gives no number a second time.
func (s *service) restore(e *idem.Engine, books *ledger, stdout io.Writer) error {
	if s.keep == "" {
		return nil
	}
	if err := e.RestoreFile(s.keep); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("-keep %s: %w", s.keep, err)
	}
	for rec := range e.All() {
		var made charge
		if json.Unmarshal(rec.Response.Body, &made) == nil {
			books.goOnFrom(made.ID)
		}
	}
	fmt.Fprintf(stdout, "records of earlier runs: %s\n", grouped(e.Len()))
	return s.save(e)
}

// save keeps the records for the next run.
func (s *service) save(e *idem.Engine) error {
	if s.keep == "" {
		return nil
	}
	if err := e.SnapshotFile(s.keep); err != nil {
		return fmt.Errorf("-keep %s: %w", s.keep, err)
	}
	return nil
}

// A gate is the engine until closing is closed. Then nothing begins any more, so that all that runs has ended when the
// server is shut, and what ended is in what is kept.
type gate struct {
	*idem.Engine
	closing <-chan struct{}
}

// Begin implements [idem.Store].
func (g gate) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	select {
	case <-g.closing:
		return idem.Outcome{}, idem.ErrClosed
	default:
		return g.Engine.Begin(ctx, req)
	}
}

// handler puts the API, the middleware and the page together. The traffic is watched in front of the
// middleware, whose own answers count as well.
func (s *service) handler(e *idem.Engine, payments *api, closing chan struct{}) (http.Handler, error) {
	idempotent, err := httpidem.New(gate{e, closing}, httpidem.Config{
		Scope:  httpidem.SharedScope, // one principal: whoever sits at this machine
		Wait:   s.wait,
		MaxRun: 2 * slowest,
	})
	if err != nil {
		return nil, err
	}
	page := &board{engine: e, api: payments, traffic: new(traffic), lease: serveLease, closing: closing}
	mux := http.NewServeMux()
	payments.routes(mux, func(h http.Handler) http.Handler { return page.traffic.watch(idempotent(h)) })
	page.routes(mux)
	return mux, nil
}

// guide is printed at start, with the server's address for URL. TestGuide does what it says.
const guide = `payments API: URL
live page:    URL/

Try, in another terminal:

# first: the payment runs, 201
curl -i URL/payments -H 'Idempotency-Key: k-1' -d '{"order":"A-1","cents":4200}'

# duplicate: the same line again gives the same answer, and Idempotency-Replayed: true
curl -i URL/payments -H 'Idempotency-Key: k-1' -d '{"order":"A-1","cents":4200}'

# other payload under the same key: 422
curl -i URL/payments -H 'Idempotency-Key: k-1' -d '{"order":"A-1","cents":9900}'

# no key: 400
curl -i URL/payments -d '{"order":"A-1","cents":4200}'

# slow payment: send this in two terminals; the second waits, and then is told 409 and when to come back
curl -i 'URL/payments?take=20s' -H 'Idempotency-Key: k-2' -d '{"order":"A-2","cents":1500}'

# capture the first order, as often as you like: one charge
curl -i -X POST URL/orders/A-1/capture -H 'Idempotency-Key: k-3'

# what was charged
curl URL/payments/1
curl URL/ledger

# a storm of retries
go run ./cmd/idemdemo load -url URL

`
