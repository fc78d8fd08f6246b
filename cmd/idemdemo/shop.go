package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// maxOrder bounds the body of a payment, in bytes. The body is the order's name and nothing else.
const maxOrder = 1024

// errNetwork is what the card network answers when it did not take the payment.
var errNetwork = errors.New("card network unreachable, nothing was charged")

// A shop is the payments server under the storm: a plain handler that embeds the engine. Its card
// network is slow, and fails now and then before it charges. It does with [idem.Do] what httpidem does for
// a whole API, to show how little an embedder needs.
type shop struct {
	store idem.Store
	books *ledger

	mu   sync.Mutex
	dice *rand.Rand // guarded by mu; one for all handlers, so that a seed says what weather there is
}

func newShop(store idem.Store, books *ledger, seed uint64) *shop {
	return &shop{store: store, books: books, dice: rand.New(rand.NewPCG(seed, 0))}
}

// ServeHTTP takes the payment that the body names, once per Idempotency-Key. A duplicate that sends
// "Prefer: wait" sleeps until the first request is done; others are told to come back.
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOrder))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req := idem.Request{
		Scope:       "storm",
		Key:         r.Header.Get("Idempotency-Key"),
		Fingerprint: idem.FingerprintOf([]byte(r.Method), []byte(r.URL.Path), order),
		Wait:        r.Header.Get("Prefer") == "wait",
	}
	// Do does not say whether it ran the operation or replayed it; the operation does.
	replayed := true
	resp, err := idem.Do(r.Context(), s.store, req, func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
		replayed = false
		return s.pay(ctx, string(order))
	})
	if err != nil {
		refuse(w, err)
		return
	}
	if replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.Status)
	_, _ = w.Write(resp.Body) // a client that left comes back
}

// pay is the operation. Until the charge is made it may fail, or stop because its client left: the
// key is then free and the next request begins again. From there on it finishes whatever happens, so
// that there is a result for those who come later.
func (s *shop) pay(ctx context.Context, order string) (idem.Response, error) {
	before, after, fails := s.weather()
	if err := pause(ctx, before); err != nil {
		return idem.Response{}, err
	}
	if fails {
		return idem.Response{}, errNetwork
	}
	paid := s.books.charge(charge{Kind: "payment", Order: order})
	if err := pause(context.WithoutCancel(ctx), after); err != nil {
		return idem.Response{}, err
	}
	return idem.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, `{"id":%d}`, paid.ID)}, nil
}

// weather rolls how long the card network takes before and after it charges, and whether it fails.
func (s *shop) weather() (before, after time.Duration, fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = time.Duration(s.dice.Int64N(int64(8 * time.Millisecond)))
	after = time.Duration(s.dice.Int64N(int64(16 * time.Millisecond)))
	return before, after, s.dice.IntN(10) == 0
}

// refuse answers what Do returned as an error. That a client left is among it, and is answered too:
// nobody reads it, but net/http wants handlers to end in an orderly way.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadGateway
	var busy *idem.InProgressError
	switch {
	case errors.As(err, &busy):
		// Whole seconds, rounded up, are all that the field can say.
		w.Header().Set("Retry-After", strconv.Itoa(int((busy.Remaining+time.Second-1)/time.Second)))
		status = http.StatusConflict
	case errors.Is(err, idem.ErrMismatch):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, idem.ErrKey):
		status = http.StatusBadRequest
	}
	http.Error(w, err.Error(), status)
}
