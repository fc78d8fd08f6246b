package bench_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// netHTTP is a service on net/http.
type netHTTP struct {
	handler  http.Handler
	engine   *idem.Engine     // nil without a guard
	server   *httptest.Server // nil before listen
	count    atomic.Int64
	exchange exchange
}

func startNetHTTP(tb testing.TB, _ time.Duration) service {
	s := &netHTTP{exchange: newExchange(tb)}
	s.handler = http.HandlerFunc(s.pay)
	return s
}

// startHTTPIdem guards the handler with httpidem as it comes. Other than fiber's middleware, it then also
// compares method, path, query and body with those of the request that is replayed.
func startHTTPIdem(tb testing.TB, ttl time.Duration) service {
	engine := newEngine(tb, ttl)
	guard, err := httpidem.New(engine, httpidem.Config{Scope: httpidem.SharedScope})
	require.NoError(tb, err)

	s := &netHTTP{engine: engine, exchange: newExchange(tb)}
	s.handler = guard(http.HandlerFunc(s.pay))
	return s
}

func (s *netHTTP) pay(w http.ResponseWriter, r *http.Request) {
	s.count.Add(1)
	var room [512]byte
	for {
		if _, err := r.Body.Read(room[:]); err != nil {
			break
		}
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(newAnswer(r.Header.Get(keyField)))
}

func (s *netHTTP) listen(testing.TB) string {
	s.server = httptest.NewServer(s.handler)
	return s.server.Listener.Addr().String()
}

func (s *netHTTP) call(key []byte) (status int, body []byte) { return s.exchange.run(s.handler, key) }

func (s *netHTTP) runs() int64 { return s.count.Load() }

func (s *netHTTP) close(tb testing.TB) {
	if s.server != nil {
		s.server.Close()
	}
	if s.engine != nil {
		require.NoError(tb, s.engine.Close())
	}
}

// exchange is a request and its response writer. Both are used again and again, so that they cost next to
// nothing beside what handles them.
type exchange struct {
	request *http.Request
	key     []string // the request's header field
	body    requestBody
	header  http.Header
	status  int
	answer  []byte
}

// requestBody is a reader with the Close that a request's body has.
type requestBody struct{ bytes.Reader }

func (*requestBody) Close() error { return nil }

func newExchange(tb testing.TB) exchange {
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, path, http.NoBody)
	require.NoError(tb, err)
	key := []string{""}
	r.RequestURI = path // as servers have it
	r.Header[keyField] = key
	r.ContentLength = int64(len(payment))
	return exchange{request: r, key: key, header: make(http.Header)}
}

func (x *exchange) run(h http.Handler, key []byte) (status int, body []byte) {
	clear(x.header)
	x.answer = x.answer[:0]
	x.key[0] = string(key) // a server makes such a string, too
	x.body.Reset(payment)
	x.request.Body = &x.body
	h.ServeHTTP(x, x.request)
	return x.status, x.answer
}

func (x *exchange) Header() http.Header    { return x.header }
func (x *exchange) WriteHeader(status int) { x.status = status }
func (x *exchange) Write(p []byte) (int, error) {
	x.answer = append(x.answer, p...)
	return len(p), nil
}
