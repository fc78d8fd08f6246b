package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// show sends a request in process and prints the answer.
func show(h http.Handler, target, key, body string, fields ...string) {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Idempotency-Replayed"), strings.TrimSpace(w.Body.String()))
}

// brief is an ErrorHandler that keeps the output of the examples short.
func brief(w http.ResponseWriter, _ *http.Request, p *httpidem.Problem) {
	http.Error(w, p.Code, p.Status)
}

// A handler that runs once per key, whatever its clients do.
func Example() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := httpidem.New(engine, httpidem.Config{
		Scope:        httpidem.ScopeHeader("Authorization"),
		ErrorHandler: brief,
	})
	if err != nil {
		panic(err)
	}

	charges := 0
	payments := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"id":%d}`, charges)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idempotent(payments))

	show(mux, "/payments", "8e03978e", `{"amount":1250}`, "Authorization", "Bearer ann")
	show(mux, "/payments", "8e03978e", `{"amount":1250}`, "Authorization", "Bearer ann")
	show(mux, "/payments", "8e03978e", `{"amount":9999}`, "Authorization", "Bearer ann")
	show(mux, "/payments", "8e03978e", `{"amount":1250}`, "Authorization", "Bearer bob")
	show(mux, "/payments", "8e03978e", `{"amount":1250}`)
	// Output:
	// 201  {"id":1}
	// 201 true {"id":1}
	// 422  key_reused
	// 201  {"id":2}
	// 401  scope_unknown
}

// Routes whose failures mean different things get middlewares of their own, on one store.
func ExampleNew_perRoute() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	with := func(policy func(int) httpidem.Action) func(http.Handler) http.Handler {
		middleware, err := httpidem.New(engine, httpidem.Config{Scope: httpidem.SharedScope, Policy: policy, ErrorHandler: brief})
		if err != nil {
			panic(err)
		}
		return middleware
	}
	fails := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "failed", code) })
	}
	mux := http.NewServeMux()
	mux.Handle("POST /quotes", with(httpidem.DefaultPolicy)(fails(500)))    // nothing happened: run it again
	mux.Handle("POST /refunds", with(httpidem.StoreAll)(fails(500)))        // once failed it has failed
	mux.Handle("POST /transfers", with(httpidem.HoldAmbiguous)(fails(504))) // the bank may have done it

	for _, target := range []string{"/quotes", "/refunds", "/transfers"} {
		show(mux, target, target[1:], "")
		show(mux, target, target[1:], "")
	}
	// Output:
	// 500  failed
	// 500  failed
	// 500  failed
	// 500 true failed
	// 504  failed
	// 409  outcome_unknown
}

// userKey is where the authentication leaves the name of the user.
type userKey struct{}

// authenticate stands for any middleware that finds out who the caller is.
func authenticate(next http.Handler) http.Handler {
	users := map[string]string{"Bearer a1": "ann", "Bearer a2": "ann", "Bearer b1": "bob"}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := users[r.Header.Get("Authorization")]
		if !ok {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// The scope comes from the authentication, which is around the middleware. So a user may renew the token
// between two attempts, and one who is locked out meanwhile gets no replay either.
func ExampleNew_scope() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := httpidem.New(engine, httpidem.Config{
		Scope: func(r *http.Request) (string, error) {
			user, ok := r.Context().Value(userKey{}).(string)
			if !ok {
				return "", &httpidem.Problem{Status: http.StatusForbidden, Code: "no_user"}
			}
			return user, nil
		},
	})
	if err != nil {
		panic(err)
	}
	h := authenticate(idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "paid by ", r.Context().Value(userKey{}))
	})))

	show(h, "/payments", "k1", "", "Authorization", "Bearer a1")
	show(h, "/payments", "k1", "", "Authorization", "Bearer a2")
	show(h, "/payments", "k1", "", "Authorization", "Bearer b1")
	show(h, "/payments", "k1", "", "Authorization", "Bearer revoked")
	// Output:
	// 200  paid by ann
	// 200 true paid by ann
	// 200  paid by bob
	// 401  who are you?
}

// A ledger refuses writers that have been overtaken.
type ledger struct {
	mu      sync.Mutex
	highest uint64
	entries []string
}

func (l *ledger) append(token uint64, entry string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token < l.highest {
		return fmt.Errorf("token is older than the last one that wrote")
	}
	l.highest = token
	l.entries = append(l.entries, entry)
	return nil
}

// A handler that stops for longer than its lease, in a paused machine say, may be overtaken by a retry.
// When it goes on, the token of its claim keeps it out of whatever remembers the highest token.
func ExampleOperation_Claim() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = engine.Close() }()
	idempotent, err := httpidem.New(engine, httpidem.Config{Scope: httpidem.SharedScope, ErrorHandler: brief})
	if err != nil {
		panic(err)
	}
	var books ledger
	paused := true
	var h http.Handler
	h = idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := httpidem.FromContext(r.Context())
		if paused {
			// Its claim is taken meanwhile: by an operator here, so that the example need not wait.
			paused = false
			_, _ = engine.Forget(r.Context(), op.Claim().Scope, op.Claim().Key)
			show(h, "/payments", "k1", "")
		}
		if err := books.append(op.Claim().Token, "paid"); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		_, _ = io.WriteString(w, "paid")
	}))

	show(h, "/payments", "k1", "")
	show(h, "/payments", "k1", "")
	fmt.Println("entries:", len(books.entries))
	// Output:
	// 200  paid
	// 503  store_unavailable
	// 200 true paid
	// entries: 1
}
