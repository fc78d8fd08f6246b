package verify_test

import (
	"compress/gzip"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// paymentsRouter is a service with what a service on chi has around its handlers. Its first run of every
// order panics if the order is "panics".
func paymentsRouter(t *testing.T, runs *atomic.Int32) http.Handler {
	engine, err := idem.New(idem.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	idempotent, err := httpidem.New(engine, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})
	require.NoError(t, err)

	silent := middleware.RequestLogger(&middleware.DefaultLogFormatter{Logger: log.New(io.Discard, "", 0), NoColor: true})
	router := chi.NewRouter()
	router.Use(middleware.RequestID, silent, middleware.Recoverer, middleware.Compress(5))
	router.Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, chi.URLParam(r, "id")) })
	router.Route("/orders/{id}", func(router chi.Router) {
		router.Use(idempotent)
		router.With(silent).Post("/capture", func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 && chi.URLParam(r, "id") == "panics" {
				panic("no")
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, strings.Repeat(`{"order":"`+chi.URLParam(r, "id")+`"} `, 100))
			if chi.URLParam(r, "id") == "streams" {
				w.(http.Flusher).Flush()
			}
		})
	})
	return router
}

// capture sends the request to capture an order, with a key of the same name.
func capture(t *testing.T, server *httptest.Server, order, encoding string) (code int, body, replayed string) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders/"+order+"/capture", strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer ann")
	req.Header.Set(httpidem.DefaultHeader, order)
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	content := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		content, err = gzip.NewReader(resp.Body)
		require.NoError(t, err)
	} else {
		require.NotEqual(t, "gzip", encoding, "it was to be compressed, unless it is an error")
	}
	text, err := io.ReadAll(content)
	require.NoError(t, err)
	return resp.StatusCode, string(text), resp.Header.Get("Idempotency-Replayed")
}

func TestChi(t *testing.T) {
	serve := func(t *testing.T) (*httptest.Server, *atomic.Int32) {
		var runs atomic.Int32
		server := httptest.NewServer(paymentsRouter(t, &runs))
		t.Cleanup(server.Close)
		return server, &runs
	}
	for _, order := range []string{"o1", "streams"} {
		t.Run(order, func(t *testing.T) {
			server, runs := serve(t)
			want := strings.Repeat(`{"order":"`+order+`"} `, 100)
			code, body, replayed := capture(t, server, order, "gzip")
			require.Equal(t, 201, code)
			require.Equal(t, want, body)
			require.Empty(t, replayed)
			// The compression is around the middleware: a client that can't read it gets the replay without.
			for _, encoding := range []string{"identity", "gzip"} {
				code, body, replayed = capture(t, server, order, encoding)
				require.Equal(t, 201, code)
				require.Equal(t, want, body)
				require.Equal(t, "true", replayed)
			}
			require.EqualValues(t, 1, runs.Load())
		})
	}
	t.Run("panics", func(t *testing.T) {
		server, runs := serve(t)
		code, _, _ := capture(t, server, "panics", "identity")
		require.Equal(t, 500, code, "by the Recoverer around the middleware")
		code, _, replayed := capture(t, server, "panics", "identity")
		require.Equal(t, 201, code)
		require.Empty(t, replayed)
		require.EqualValues(t, 2, runs.Load())
	})
}
