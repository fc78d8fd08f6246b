package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// runTimeout bounds an order on the server, its wait for another server included.
	runTimeout = 20 * time.Second

	// stateHeader says what a server found: fresh, replay, in progress or unknown.
	stateHeader = "Idem-State"
)

// An assignment is what one server process is told.
type assignment struct {
	setup
	Name, Addr string
	Ledger     string // URL
}

// A server takes orders and charges them.
type server struct {
	assignment
	books *books
}

// serveOrders is the whole of a server process.
func serveOrders(ctx context.Context, spec string, stderr io.Writer) error {
	var s server
	if err := json.Unmarshal([]byte(spec), &s.assignment); err != nil {
		return fmt.Errorf("flag -serve: %w", err)
	}
	books, err := openBooks(ctx, s.setup)
	if err != nil {
		return err
	}
	s.books = books
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthy", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /orders/{order}", s.order)
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return errors.Join(err, books.close())
	}
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = web.Shutdown(grace)
	})
	defer stop()
	fmt.Fprintf(stderr, "server %s listens on %s\n", s.Name, s.Addr)
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, books.close())
	}
	return books.close()
}

// order answers a customer.
func (s *server) order(w http.ResponseWriter, r *http.Request) {
	// A customer who hangs up must not stop a charge halfway, nor a duplicate's wait: with Wait, who comes while
	// another server has the order sleeps until that one is done, or dead for as long as a lease lasts.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), runTimeout)
	defer cancel()
	order := r.PathValue("order")
	state := "replay"
	resp, err := idem.Do(ctx, s.books.store, idem.Request{
		Scope: scope, Key: order, Fingerprint: idem.FingerprintOf([]byte("pay"), []byte(order)), Wait: true,
	}, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
		state = "fresh"
		return s.pay(ctx, c)
	})
	switch {
	case err == nil:
		w.Header().Set(stateHeader, state)
		w.WriteHeader(resp.Status)
		_, _ = w.Write(resp.Body)
	case errors.Is(err, idem.ErrUnknown):
		w.Header().Set(stateHeader, "unknown")
		http.Error(w, "the server that had this order died; ask a person", http.StatusConflict)
	case errors.Is(err, idem.ErrInProgress):
		w.Header().Set(stateHeader, "in progress")
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// pay charges an order under a claim. The receipt says by whom, so that customers can compare what they got.
func (s *server) pay(ctx context.Context, c idem.Claim) (idem.Response, error) {
	receipt := idem.Response{Status: http.StatusOK, Body: fmt.Appendf(nil, "%s paid at server %s, receipt %d", c.Key, s.Name, c.Token)}
	work()
	tell := func() error {
		err := s.tell(ctx, charge{Order: c.Key, Server: s.Name, Token: c.Token})
		work()
		return err
	}
	if s.books.postgres == nil {
		// Who pays by card has no transaction with the bank: from here on the charge is there and the record not.
		return receipt, tell()
	}
	// Here it has: charge and record are one transaction. Do calls Complete once more, which finds the claim completed
	// and changes nothing.
	return receipt, s.books.payOnce(ctx, c, s.Name, receipt, tell)
}

// work is what takes time in charging an order.
func work() { time.Sleep(2*time.Millisecond + rand.N(10*time.Millisecond)) }

// tell writes a charge into the ledger.
func (s *server) tell(ctx context.Context, c charge) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Ledger, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("ledger: %s", resp.Status)
	}
	return nil
}
