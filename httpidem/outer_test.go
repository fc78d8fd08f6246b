package httpidem_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// These tests are about what middlewares around this one do, to the request and to the response's header.

// outer returns a handler that does something before the inner one.
func outer(inner http.Handler, before func(http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(w, r)
		inner.ServeHTTP(w, r)
	})
}

func TestFieldThatTheHandlerTakesAwayStaysAway(t *testing.T) {
	for name, redact := range map[string]func(int, http.Header, []byte) []byte{
		"plain": nil,
		"redacted": func(_ int, header http.Header, body []byte) []byte {
			assert.Empty(t, header.Values("Cache-Control"))
			header.Set("X-Redacted", "1")
			return body
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := guard(t, httpidem.Config{Redact: redact})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Del("Cache-Control")
				w.Header()["X-Frame-Options"] = nil
				w.Header()["Content-Type"] = nil
				w.WriteHeader(http.StatusCreated)
			}))
			h := outer(inner, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Cache-Control", "no-store")
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("X-Frame-Options", "DENY")
				w.Header().Set("X-Kept", "1")
			})
			first, again := post(t, h, "k", ""), post(t, h, "k", "")
			requireReplayed(t, again, http.StatusCreated, "")
			for _, w := range []*httptest.ResponseRecorder{first, again} {
				for _, gone := range []string{"Cache-Control", "Content-Type", "X-Frame-Options"} {
					require.Empty(t, w.Header().Values(gone), gone)
				}
				require.Equal(t, "1", w.Header().Get("X-Kept"))
			}
		})
	}
}

// Redact may set what the handler took away.
func TestRedactSetsAFieldThatWasTakenAway(t *testing.T) {
	inner := guard(t, httpidem.Config{Redact: func(_ int, header http.Header, body []byte) []byte {
		header.Set("Cache-Control", "private")
		return body
	}})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("Cache-Control") }))
	h := outer(inner, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-store") })
	require.Empty(t, post(t, h, "k", "").Header().Values("Cache-Control"))
	require.Equal(t, []string{"private"}, post(t, h, "k", "").Header().Values("Cache-Control"))
}

// What is behind the body in its array is not written to.
func TestNewResponseLeavesTheBodysArrayAlone(t *testing.T) {
	buffer := []byte("body, and more that is the caller's own")
	resp := httpidem.NewResponse(http.StatusCreated, http.Header{"Location": {"/payments/1"}}, buffer[:4])
	require.Equal(t, "body", string(resp.Body))
	require.Equal(t, "body, and more that is the caller's own", string(buffer))
}

// A form and its multipart twin.
const (
	urlencoded = "application/x-www-form-urlencoded"
	multiparts = "multipart/form-data; boundary=b"
	part       = "--b\r\nContent-Disposition: form-data; name=\"cents\"\r\n\r\n100\r\n--b--\r\n"
)

// consumers are what may be done with a body before the middleware sees it.
var consumers = []struct {
	name, kind, body string
	length           bool // the request says how long it is
	refused          bool
	before           func(r *http.Request)
}{
	{"form value", urlencoded, "cents=100", true, true, func(r *http.Request) { _ = r.PostFormValue("token") }},
	{"form value, chunked", urlencoded, "cents=100", false, true, func(r *http.Request) { _ = r.PostFormValue("token") }},
	{"multipart", multiparts, part, true, true, func(r *http.Request) { _ = r.ParseMultipartForm(1 << 20) }},
	{"multipart, chunked", multiparts, part, false, true, func(r *http.Request) { _ = r.ParseMultipartForm(1 << 20) }},
	{"multipart reader, chunked", multiparts, part, false, true, func(r *http.Request) { _, _ = r.MultipartReader() }},
	{"all of it", "application/json", `{"cents":100}`, true, true, func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }},
	{"one byte", "application/json", `{"cents":100}`, true, true, func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 1)) }},
	{"taken away", "application/json", `{"cents":100}`, true, true, func(r *http.Request) { r.Body = http.NoBody }},
	{"closed", "application/json", `{"cents":100}`, true, true, func(r *http.Request) { _ = r.Body.Close() }},
	{"form with its length taken away", urlencoded, "cents=100", true, true, func(r *http.Request) {
		_ = r.ParseForm()
		r.Body, r.ContentLength = http.NoBody, 0
	}},
	{"nothing", "application/json", `{"cents":100}`, false, false, func(*http.Request) {}},
	{"form value of what is none", "application/json", `{"cents":100}`, true, false, func(r *http.Request) { _ = r.FormValue("token") }},
	{"form value of what is none, chunked", "application/json", `{"cents":100}`, false, false, func(r *http.Request) { _ = r.FormValue("token") }},
	{"form value without a body", urlencoded, "", true, false, func(r *http.Request) { _ = r.FormValue("token") }},
	{"put back", urlencoded, "cents=100", true, false, func(r *http.Request) {
		all, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(all))
		_ = r.ParseForm()
		r.Body = io.NopCloser(bytes.NewReader(all))
	}},
}

func TestBodyThatSomebodyHasReadBefore(t *testing.T) {
	for _, test := range consumers {
		t.Run(test.name, func(t *testing.T) {
			before := func(_ http.ResponseWriter, r *http.Request) { test.before(r) }
			t.Run("around", func(t *testing.T) { runConsumer(t, test.kind, test.body, test.length, test.refused, nil, before) })
			scope := func(r *http.Request) (string, error) {
				test.before(r)
				return "", nil
			}
			t.Run("scope", func(t *testing.T) { runConsumer(t, test.kind, test.body, test.length, test.refused, scope, nil) })
		})
	}
}

func runConsumer(t *testing.T, kind, body string, length, refused bool, scope func(*http.Request) (string, error), before func(http.ResponseWriter, *http.Request)) {
	var log bytes.Buffer
	runs := 0
	store := newFaultyStore(t, idem.Config{})
	h := guardWith(t, store, httpidem.Config{Scope: scope, FailOpen: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})(
		counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, body, string(got))
			_, _ = fmt.Fprint(w, "paid")
		}))
	if before != nil {
		h = outer(h, before)
	}
	server := startServer(t, h, onlyHTTP1)
	send := func() (int, http.Header) { return upload(t, server, kind, body, length) }
	if !refused {
		code, _ := send()
		require.Equal(t, 200, code)
		_, header := send()
		require.Equal(t, "true", header.Get("Idempotency-Replayed"))
		require.Equal(t, 1, runs)
		require.Empty(t, log.String())
		return
	}
	store.OnBegin = func() error { return httpcases.ErrDown } // FailOpen must not let it pass
	for range 2 {
		code, header := send()
		require.Equal(t, 400, code)
		require.Equal(t, "application/problem+json", header.Get("Content-Type"))
	}
	require.Zero(t, runs)
	require.Contains(t, log.String(), "level=ERROR")
	require.Contains(t, log.String(), "its body was read before")
	require.NotContains(t, log.String(), "secret-key")
}

// upload sends a body whose length it says, or not, and returns the status and the header of the answer.
func upload(t *testing.T, server *testServer, kind, body string, length bool) (int, http.Header) {
	var reader io.Reader = strings.NewReader(body)
	if !length {
		reader = struct{ io.Reader }{reader}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, reader)
	require.NoError(t, err)
	req.Header.Set("Content-Type", kind)
	req.Header.Set(httpidem.DefaultHeader, "secret-key")
	resp, err := server.client(t).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, resp.Header
}
