package httpidem_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

func TestNothingBypassesTheRecorder(t *testing.T) {
	h := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, unwraps := w.(interface{ Unwrap() http.ResponseWriter })
		assert.False(t, unwraps)
		for field := range reflect.TypeOf(w).Elem().Fields() {
			assert.False(t, field.IsExported(), field.Name)
		}
		_, _ = io.Copy(w, strings.NewReader("a")) // by WriterTo
		_, _ = w.(io.ReaderFrom).ReadFrom(iotestReader("b"))
		_, _ = w.(io.StringWriter).WriteString("c")
		_, _ = w.Write([]byte("d"))
	}))
	require.Equal(t, "abcd", post(t, h, "k", "").Body.String())
	requireReplayed(t, post(t, h, "k", ""), 200, "abcd")
}

// iotestReader returns a reader that is nothing but one.
func iotestReader(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

// goneWriter is the writer of a client that is gone.
type goneWriter struct{ *httptest.ResponseRecorder }

func (goneWriter) Write([]byte) (int, error)          { return 0, httpcases.ErrDown }
func (goneWriter) WriteString(string) (int, error)    { return 0, httpcases.ErrDown }
func (goneWriter) FlushError() error                  { return httpcases.ErrDown }
func (goneWriter) SetWriteDeadline(_ time.Time) error { return httpcases.ErrDown }

func TestClientThatIsGoneDoesNotStopTheHandler(t *testing.T) {
	h := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, err := io.WriteString(w, "event ")
			assert.NoError(t, err)
			assert.NoError(t, http.NewResponseController(w).Flush())
			_, err = w.Write([]byte("\n"))
			assert.NoError(t, err)
		}
		assert.Equal(t, httpcases.ErrDown, http.NewResponseController(w).SetWriteDeadline(time.Now()), "other errors are told")
	}))
	h.ServeHTTP(goneWriter{httptest.NewRecorder()}, newRequest(t.Context(), "k", ""))
	requireReplayed(t, post(t, h, "k", ""), 200, "event \nevent \nevent \n")
}

func TestWriterWithoutExtras(t *testing.T) {
	h := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		_, _, err := c.Hijack()
		for _, err := range []error{err, c.Flush(), c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex()} {
			assert.ErrorIs(t, err, http.ErrNotSupported)
		}
		_, _ = w.Write([]byte("plain"))
	}))
	h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, newRequest(t.Context(), "k", ""))
	requireReplayed(t, post(t, h, "k", ""), 200, "plain")
}

func TestFlushedEventsArriveAtOnce(t *testing.T) {
	next := make(chan struct{})
	server := startServer(t, guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range next {
			_, _ = w.Write([]byte("event\n"))
			_ = http.NewResponseController(w).Flush()
		}
	})), onlyHTTP1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
	require.NoError(t, err)
	req.Header.Set(httpidem.DefaultHeader, "k")
	go func() { next <- struct{}{} }()
	resp, err := server.client(t).Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	for range 5 {
		_, err = io.ReadFull(resp.Body, make([]byte, len("event\n")))
		require.NoError(t, err)
		next <- struct{}{}
	}
	close(next)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "event\n", string(rest))
}

func TestResponseLimit(t *testing.T) {
	for size, kept := range map[int]bool{0: true, 99: true, 100: true, 101: false, 5000: false} {
		for _, pieces := range []int{1, 10} {
			runs := 0
			h := guard(t, httpidem.Config{MaxResponseBytes: 100})(counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
				text := strings.Repeat("x", size)
				for i := range pieces {
					_, _ = io.WriteString(w, text[i*size/pieces:(i+1)*size/pieces])
				}
			}))
			require.Equal(t, size, post(t, h, "k", "").Body.Len())
			again := post(t, h, "k", "")
			if kept {
				requireReplayed(t, again, 200, strings.Repeat("x", size))
			} else {
				require.EqualValues(t, 200, requireProblem(t, again, 410, httpidem.CodeResponseNotRetained)["original_status"])
			}
			require.Equal(t, 1, runs)
		}
	}
}

func TestPolicyDecidesAboutWhatWasStreamed(t *testing.T) {
	for code, want := range map[int]int{200: 410, 500: 500, 504: 409} {
		h := guard(t, httpidem.Config{MaxResponseBytes: 1, Policy: func(code int) httpidem.Action {
			if code == 500 {
				return httpidem.Release
			}
			return httpidem.HoldAmbiguous(code)
		}})(status(code, "long"))
		require.Equal(t, code, post(t, h, "k", "").Code)
		require.Equal(t, want, post(t, h, "k", "").Code)
	}
}

func TestKeepHeader(t *testing.T) {
	handler := func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"Set-Cookie", "Date", "X-Request-Id", "X-Kept", "Keep-Alive", "Trailer"} {
			w.Header().Set(name, "X-Sum")
		}
		w.Header()["x-odd"] = []string{"1"}
		w.WriteHeader(http.StatusOK)
		w.Header().Set("X-Sum", "1")
	}
	replayed := func(conf httpidem.Config) http.Header {
		h := guard(t, conf)(http.HandlerFunc(handler))
		post(t, h, "k", "")
		w := post(t, h, "k", "")
		result := w.Result()
		require.NoError(t, result.Body.Close())
		result.Header["(trailers)"] = result.Trailer.Values("X-Sum")
		delete(result.Header, "Idempotency-Replayed")
		delete(result.Header, "Content-Type") // the recorder's own
		return result.Header
	}
	sum := []string{"X-Sum"}
	require.Equal(t, http.Header{"X-Kept": sum, "Trailer": sum, "x-odd": {"1"}, "(trailers)": {"1"}}, replayed(httpidem.Config{}))
	require.Equal(t, http.Header{"X-Kept": sum, "Trailer": sum, "x-odd": {"1"}, "(trailers)": {"1"}, "Set-Cookie": sum, "Date": sum, "X-Request-Id": sum},
		replayed(httpidem.Config{KeepHeader: func(string) bool { return true }}), "hop-by-hop fields are never kept")
	require.Equal(t, http.Header{"Set-Cookie": sum, "(trailers)": nil},
		replayed(httpidem.Config{KeepHeader: func(name string) bool { return name == "Set-Cookie" }}))
	require.Equal(t, http.Header{"x-odd": {"1"}, "(trailers)": nil},
		replayed(httpidem.Config{KeepHeader: func(name string) bool { return name == "X-Odd" }}), "names are canonical")
}

func TestRedact(t *testing.T) {
	secret := []byte(`{"card":"4242"}`)
	h := guard(t, httpidem.Config{Redact: func(code int, header http.Header, body []byte) []byte {
		require.Equal(t, 201, code)
		require.Equal(t, []string{"a", "b"}, header.Values("X-List"))
		header.Del("X-Secret")
		header.Set("X-Redacted", "1")
		for i := range body {
			body[i] = '*' // the copy
		}
		return append(body, '!')
	}})(status(201, string(secret), "X-Secret", "1", "X-List", "a", "X-List", "b", "Content-Length", "15", "Content-Type", "application/json"))
	first := post(t, h, "k", "")
	require.Equal(t, string(secret), first.Body.String())
	require.Equal(t, "1", first.Header().Get("X-Secret"))
	again := post(t, h, "k", "")
	requireReplayed(t, again, 201, strings.Repeat("*", 15)+"!")
	require.Equal(t, "1", again.Header().Get("X-Redacted"))
	require.Equal(t, "application/json", again.Header().Get("Content-Type"))
	require.NotContains(t, again.Header(), "X-Secret")
	require.NotContains(t, again.Header(), "Content-Length")
}

// TestHeaderOfMiddlewaresAround: what an outer middleware sets is its own, on a replay as well.
func TestHeaderOfMiddlewaresAround(t *testing.T) {
	inner := guard(t, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Cache-Control", "private")
		w.WriteHeader(http.StatusCreated)
	}))
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Vary", "Origin")
		w.Header().Set("Cache-Control", "no-store")
		inner.ServeHTTP(w, r)
	})
	for _, origin := range []string{"https://a.example", "https://b.example"} {
		w := post(t, outer, "k", "", "Origin", origin)
		require.Equal(t, 201, w.Code)
		require.Equal(t, origin, w.Header().Get("Access-Control-Allow-Origin"))
		require.Equal(t, []string{"Origin", "Accept"}, w.Header().Values("Vary"))
		require.Equal(t, "private", w.Header().Get("Cache-Control"))
	}
}

func TestResetContentHasNoBody(t *testing.T) {
	h := guard(t, httpidem.Config{})(status(205, "body", "Content-Length", "4", "X-Kept", "1"))
	require.Equal(t, 205, post(t, h, "k", "").Code)
	again := post(t, h, "k", "")
	requireReplayed(t, again, 205, "")
	require.NotContains(t, again.Header(), "Content-Length")
	require.Equal(t, "1", again.Header().Get("X-Kept"))
}

func TestSuperfluousStatusIsLogged(t *testing.T) {
	var log bytes.Buffer
	h := guard(t, httpidem.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		assert.Empty(t, log.String())
		w.WriteHeader(http.StatusInternalServerError)
	}))
	require.Equal(t, 201, post(t, h, "k", "").Code)
	require.Contains(t, log.String(), "superfluous")
}

// recordStore grants every claim and keeps the record.
type recordStore struct {
	idem.Store
	resp idem.Response
}

func (s *recordStore) Begin(context.Context, idem.Request) (idem.Outcome, error) {
	return idem.Outcome{State: idem.Fresh, Remaining: time.Minute}, nil
}

func (s *recordStore) Complete(_ context.Context, _ idem.Claim, resp idem.Response) error {
	s.resp = resp
	s.resp.Header, s.resp.Body = bytes.Clone(resp.Header), bytes.Clone(resp.Body)
	return nil
}

func TestNewResponseIsWhatTheMiddlewareRecords(t *testing.T) {
	header := http.Header{"X-A": {"1", "2"}}
	for _, body := range []string{"", "<html>", strings.Repeat("x", 5000)} {
		var store recordStore
		h := guardWith(t, &store, httpidem.Config{})(status(201, body, "X-A", "1", "X-A", "2"))
		post(t, h, "k", "")
		got := httpidem.NewResponse(201, header.Clone(), []byte(body))
		require.Equal(t, store.resp.Status, got.Status)
		require.Equal(t, string(store.resp.Header), string(got.Header))
		require.Equal(t, string(store.resp.Body), string(got.Body))
	}
}

func TestRecordIsHTTP1(t *testing.T) {
	var store recordStore
	h := guardWith(t, &store, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.Write([]byte("body"))
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	}))
	post(t, h, "k", "")
	head, trailers, ok := strings.Cut(string(store.resp.Header), "\r\n\r\n")
	require.True(t, ok)
	require.ElementsMatch(t, []string{"Trailer: X-Sum", "Content-Type: text/plain; charset=utf-8"}, strings.Split(head, "\r\n"))
	require.ElementsMatch(t, []string{"X-Sum: 1", "Trailer:X-More: 2"}, strings.Split(strings.TrimSuffix(trailers, "\r\n"), "\r\n"))
	require.Equal(t, "body", string(store.resp.Body))
}

// FuzzReplay: any bytes that a store returns as a header can be replayed, and what a handler set comes
// back unchanged.
func FuzzReplay(f *testing.F) {
	f.Add([]byte("A: 1\r\nA: 2\r\n\r\nTrailer:B: 3\r\n"), "X-A", "value")
	f.Add([]byte("\r\n:\r\n: \r\nTrailer:\r\nTrailer: A\r\n"), "Trailer:X", "a\r\nb")
	f.Add([]byte("A: 1\nB"), "X\r\nEvil: 1\r\nY", "1")
	f.Fuzz(func(t *testing.T, block []byte, name, value string) {
		w := httptest.NewRecorder()
		store := httpcases.OutcomeStore{Outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 200, Header: block}}}
		guardWith(t, store, httpidem.Config{})(http.NotFoundHandler()).ServeHTTP(w, newRequest(t.Context(), "k", ""))
		require.Equal(t, 200, w.Code)

		set := http.Header{name: {value, "second"}, "X-Other": {"1"}}
		resp := httpidem.NewResponse(200, set.Clone(), nil)
		store.Outcome.Response = resp
		w = httptest.NewRecorder()
		guardWith(t, store, httpidem.Config{})(http.NotFoundHandler()).ServeHTTP(w, newRequest(t.Context(), "k", ""))
		if got, kept := w.Header()[name]; kept && name != "X-Other" {
			require.Equal(t, []string{strings.NewReplacer("\r", " ", "\n", " ").Replace(value), "second"}, got)
		}
		require.Equal(t, []string{"1"}, w.Header()["X-Other"])
		for got := range w.Header() {
			require.Contains(t, []string{name, "X-Other", "Idempotency-Replayed", "Content-Type"}, got, "a name or value must not become another field")
		}
	})
}

// The middleware refuses the body of a 204 or a 304 as net/http does, so that no type is guessed from it.
func TestNewResponseWithABodyThatMayNotBe(t *testing.T) {
	for _, code := range []int{http.StatusNoContent, http.StatusNotModified} {
		var store recordStore
		post(t, guardWith(t, &store, httpidem.Config{})(status(code, "body")), "k", "")
		got := httpidem.NewResponse(code, http.Header{}, []byte("body"))
		require.Equal(t, string(store.resp.Header), string(got.Header))
		require.Equal(t, string(store.resp.Body), string(got.Body))
	}
}

// A handler that fills the map itself gets no field past the rules by its spelling.
func TestNamesThatAreNotCanonicalAreLeftOutToo(t *testing.T) {
	var store recordStore
	h := guardWith(t, &store, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"SET-COOKIE", "set-cookie", "X-Request-ID", "CONNECTION"} {
			w.Header()[name] = []string{"secret"} // without Set, which would make it canonical
		}
		w.Header()["X-KEPT"] = []string{"1"}
	}))
	post(t, h, "k", "")
	require.Equal(t, "X-KEPT: 1\r\n", string(store.resp.Header))
}

func TestKeepHeaderDecidesAboutASniffedType(t *testing.T) {
	var store recordStore
	h := guardWith(t, &store, httpidem.Config{KeepHeader: func(name string) bool { return name != "Content-Type" }})(steps("<html>"))
	post(t, h, "k", "")
	require.NotContains(t, string(store.resp.Header), "Content-Type")
}
