package httpidem_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// post sends a request with the key through h, in process. Fields are name, value pairs.
func post(tb testing.TB, h http.Handler, key, body string, fields ...string) *httptest.ResponseRecorder {
	tb.Helper()
	return postContext(tb.Context(), h, key, body, fields...)
}

func postContext(ctx context.Context, h http.Handler, key, body string, fields ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, newRequest(ctx, key, body, fields...))
	return w
}

func newRequest(ctx context.Context, key, body string, fields ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set(httpidem.DefaultHeader, key)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// counted returns a handler that counts its runs and is h otherwise. It must not run at two places at once.
func counted(runs *int, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*runs++
		h(w, r)
	})
}

// requireProblem checks an answer of the middleware's own, and returns its members.
func requireProblem(tb testing.TB, w *httptest.ResponseRecorder, status int, code string) map[string]any {
	tb.Helper()
	require.Equal(tb, status, w.Code, w.Body.String())
	require.Equal(tb, "application/problem+json", w.Header().Get("Content-Type"))
	var members map[string]any
	require.NoError(tb, json.Unmarshal(w.Body.Bytes(), &members))
	require.Equal(tb, code, members["code"])
	require.EqualValues(tb, status, members["status"])
	require.NotEmpty(tb, members["title"])
	require.Empty(tb, w.Header().Get("Idempotency-Replayed"))
	return members
}

// requireReplayed checks that an answer is the recorded one.
func requireReplayed(tb testing.TB, w *httptest.ResponseRecorder, status int, body string) {
	tb.Helper()
	require.Equal(tb, status, w.Code, w.Body.String())
	require.Equal(tb, body, w.Body.String())
	require.Equal(tb, "true", w.Header().Get("Idempotency-Replayed"))
}

// newFaultyStore returns a store that works, until a test makes it fail.
func newFaultyStore(tb testing.TB, conf idem.Config) *httpcases.FaultyStore {
	tb.Helper()
	return &httpcases.FaultyStore{Store: newEngine(tb, conf)}
}

// flush is what a handler does with a writer that is a Flusher.
func flush(w http.ResponseWriter) {
	f, ok := w.(http.Flusher)
	if !ok {
		panic("the writer is no Flusher")
	}
	f.Flush()
}
