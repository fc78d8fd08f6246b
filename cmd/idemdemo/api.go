package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

const (
	// usual is how long the card network takes, unless the request says otherwise: long enough for a
	// duplicate to meet the first request.
	usual = 100 * time.Millisecond

	// slowest bounds what a request may say.
	slowest = time.Minute

	// maxCents is a million, enough for a demo and far from the limits of an int.
	maxCents = 1_000_000_00
)

// An api is a small payments service. Its handlers know nothing of duplicates: each call charges. The
// middleware is put in front of the two that must not run twice.
type api struct {
	books *ledger

	mu      sync.Mutex
	running map[idem.Claim]struct{} // the claims whose handlers run, for the page
}

func newAPI() *api { return &api{books: newLedger(), running: make(map[idem.Claim]struct{})} }

// routes adds the service to mux, with guard in front of what charges.
func (a *api) routes(mux *http.ServeMux, guard func(http.Handler) http.Handler) {
	mux.Handle("POST /payments", guard(http.HandlerFunc(a.pay)))
	mux.Handle("POST /orders/{id}/capture", guard(http.HandlerFunc(a.capture)))
	mux.HandleFunc("GET /payments/{id}", a.payment)
	mux.HandleFunc("GET /ledger", a.ledger)
}

// pay charges an order. The query parameter take says how long that lasts. Everything is checked before the
// charge; answers that refuse are recorded like others, since a retry cannot change them.
func (a *api) pay(w http.ResponseWriter, r *http.Request) {
	var p struct {
		Order string `json:"order"`
		Cents int    `json:"cents"`
	}
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&p); err != nil {
		sayNo(w, http.StatusBadRequest, `want {"order":"A-1","cents":4200}: `+err.Error())
		return
	}
	take, err := takeOf(r)
	switch {
	case err != nil:
		sayNo(w, http.StatusBadRequest, err.Error())
	case p.Order == "" || len(p.Order) > 64:
		sayNo(w, http.StatusBadRequest, "order: want 1 to 64 bytes")
	case p.Cents < 1 || p.Cents > maxCents:
		sayNo(w, http.StatusBadRequest, fmt.Sprintf("cents: want 1 to %d", maxCents))
	default:
		a.charge(w, r, take, charge{Kind: "payment", Order: p.Order, Cents: p.Cents})
	}
}

// capture charges an order that was paid once more, for its last amount.
func (a *api) capture(w http.ResponseWriter, r *http.Request) {
	order := r.PathValue("id")
	paid, ok := a.books.lastOf(order)
	if !ok {
		// It may be paid later, and then the same key must do.
		if op, ok := httpidem.FromContext(r.Context()); ok {
			op.NoStore()
		}
		sayNo(w, http.StatusNotFound, "no payment for this order yet")
		return
	}
	a.charge(w, r, usual, charge{Kind: "capture", Order: order, Cents: paid.Cents})
}

// charge is the effect that must happen once. It can be stopped only before it has happened, and says 503
// then, after which the middleware frees the key. The client's leaving does not stop it: the middleware
// has detached the request from that.
func (a *api) charge(w http.ResponseWriter, r *http.Request, take time.Duration, c charge) {
	leave := a.enter(r.Context())
	defer leave()
	if err := pause(r.Context(), take); err != nil {
		sayNo(w, http.StatusServiceUnavailable, "stopped before charging: "+err.Error())
		return
	}
	c = a.books.charge(c)
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", c.ID))
	writeJSON(w, http.StatusCreated, c)
}

// payment shows one charge.
func (a *api) payment(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	c, ok := a.books.find(id)
	if err != nil || !ok {
		sayNo(w, http.StatusNotFound, "no such charge, or too long ago")
		return
	}
	writeJSON(w, http.StatusOK, c)
}

// ledger shows what was charged, newest first. A client that compares it with its payments sees that
// duplicates left no trace.
func (a *api) ledger(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.books.last(100))
}

// enter notes that the claim of ctx, if it has one, is at work until leave is called. The page could ask the
// engine for all its records instead, but would look at each of them, twice a second, to find these few.
func (a *api) enter(ctx context.Context) (leave func()) {
	op, ok := httpidem.FromContext(ctx)
	if !ok {
		return func() {}
	}
	claim := op.Claim()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[claim] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.running, claim)
	}
}

// atWork returns up to n claims whose handlers run, those that were granted first at the top.
func (a *api) atWork(n int) []idem.Claim {
	a.mu.Lock()
	defer a.mu.Unlock()
	claims := make([]idem.Claim, 0, len(a.running))
	for c := range a.running {
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(x, y idem.Claim) int { return cmp.Compare(x.Token, y.Token) })
	return claims[:min(n, len(claims))]
}

// takeOf returns how long the request wants its payment to last.
func takeOf(r *http.Request) (time.Duration, error) {
	s := r.URL.Query().Get("take")
	if s == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > slowest {
		return 0, errors.New("take: want a duration from 0s to 1m, such as 20s")
	}
	return d, nil
}

// sayNo refuses a request.
func sayNo(w http.ResponseWriter, status int, reason string) {
	writeJSON(w, status, map[string]string{"error": reason})
}

// writeJSON answers with v in JSON and a newline, for terminals.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only values of our own come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that left is not told
}
