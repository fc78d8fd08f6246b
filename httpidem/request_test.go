package httpidem_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// watchedBody counts how often it is closed.
type watchedBody struct {
	io.Reader
	closes int
}

func (b *watchedBody) Close() error { b.closes++; return nil }

func TestHandlerGetsTheRequestAsItWas(t *testing.T) {
	var forked strings.Builder
	fork := multipart.NewWriter(&forked)
	require.NoError(t, fork.WriteField("a", "1"))
	require.NoError(t, fork.Close())
	for name, test := range map[string]struct {
		body    io.Reader
		length  int64
		kind    string
		handler func(t *testing.T, r *http.Request)
	}{
		"bytes": {strings.NewReader("\x00\xffbody"), 6, "", func(t *testing.T, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, "\x00\xffbody", string(got))
			n, err := r.Body.Read(make([]byte, 1))
			require.Zero(t, n)
			require.Equal(t, io.EOF, err)
		}},
		"in small pieces": {iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 5000))), -1, "", func(t *testing.T, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Len(t, got, 5000)
		}},
		"more than is trusted": {strings.NewReader(strings.Repeat("x", 1<<20)), 1 << 20, "", func(t *testing.T, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Len(t, got, 1<<20)
		}},
		"form": {strings.NewReader("a=1"), 3, "application/x-www-form-urlencoded", func(t *testing.T, r *http.Request) {
			require.NoError(t, r.ParseForm())
			require.Equal(t, "1", r.PostForm.Get("a"))
		}},
		"multipart": {strings.NewReader(forked.String()), int64(forked.Len()), fork.FormDataContentType(), func(t *testing.T, r *http.Request) {
			require.Equal(t, "1", r.FormValue("a"))
		}},
		"closed": {strings.NewReader("body"), 4, "", func(t *testing.T, r *http.Request) {
			require.NoError(t, r.Body.Close())
			require.NoError(t, r.Body.Close())
			_, err := r.Body.Read(make([]byte, 1))
			require.Equal(t, http.ErrBodyReadAfterClose, err)
		}},
		"not read": {strings.NewReader("body"), 4, "", func(*testing.T, *http.Request) {}},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			h := guard(t, httpidem.Config{})(counted(&runs, func(_ http.ResponseWriter, r *http.Request) {
				assert.Equal(t, test.length, r.ContentLength)
				test.handler(t, r)
			}))
			body := &watchedBody{Reader: test.body}
			r := newRequest(t.Context(), "k", "", "Content-Type", test.kind)
			r.Body, r.ContentLength = body, test.length
			h.ServeHTTP(httptest.NewRecorder(), r)
			require.Equal(t, 1, runs)
			require.Equal(t, 1, body.closes)
		})
	}
	t.Run("without a body", func(t *testing.T) {
		for _, body := range []io.ReadCloser{nil, http.NoBody} {
			runs := 0
			h := guard(t, httpidem.Config{})(counted(&runs, func(_ http.ResponseWriter, r *http.Request) { assert.Equal(t, body, r.Body) }))
			r := newRequest(t.Context(), "k", "")
			r.Body, r.ContentLength = body, 0
			h.ServeHTTP(httptest.NewRecorder(), r)
			require.Equal(t, 1, runs)
		}
	})
}

// TestHandlerThatKeepsWhatItWasGiven: buffers are used again, and nobody may see another request in them.
func TestHandlerThatKeepsWhatItWasGiven(t *testing.T) {
	var bodies []io.ReadCloser
	var writers []http.ResponseWriter
	keeps := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bodies, writers = append(bodies, r.Body), append(writers, w)
		_, _ = io.WriteString(w, strings.Repeat(r.Header.Get("X-Name"), len(writers)))
		for _, old := range writers[:len(writers)-1] {
			_, _ = io.WriteString(old, "evil") // to a request that was answered long ago
		}
	})
	h := guard(t, httpidem.Config{})(keeps)
	down := guardWith(t, httpcases.OutcomeStore{Err: httpcases.ErrDown}, httpidem.Config{FailOpen: true})(keeps)
	for i := range 20 {
		name := fmt.Sprint("name", i)
		want := strings.Repeat(name, 2*i+1)
		require.Equal(t, want, post(t, h, name, "secret of "+name, "X-Name", name).Body.String())
		requireReplayed(t, post(t, h, name, "secret of "+name, "X-Name", name), 200, want)
		require.Equal(t, want+name, post(t, down, name, "secret of "+name, "X-Name", name).Body.String())
		for _, body := range bodies {
			_, err := body.Read(make([]byte, 100))
			require.Equal(t, http.ErrBodyReadAfterClose, err)
		}
	}
}

func TestRequestLimit(t *testing.T) {
	for _, sent := range []struct {
		name    string
		chunked bool
	}{{"with a length", false}, {"chunked", true}} {
		for size, want := range map[int]int{99: 201, 100: 201, 101: 413, 5000: 413} {
			t.Run(fmt.Sprint(sent.name, size), func(t *testing.T) {
				runs := 0
				h := guard(t, httpidem.Config{MaxRequestBytes: 100})(counted(&runs, status(201, "")))
				r := newRequest(t.Context(), "k", strings.Repeat("x", size))
				if sent.chunked {
					r.ContentLength = -1
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Equal(t, want, w.Code)
				if want == 413 {
					requireProblem(t, w, 413, httpidem.CodeRequestTooLarge)
					require.Zero(t, runs)
				}
			})
		}
	}
	t.Run("is not read to the end when the length says it", func(t *testing.T) {
		h := guard(t, httpidem.Config{MaxRequestBytes: 100})(status(201, ""))
		r := newRequest(t.Context(), "k", "")
		r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(errors.New("read"))), 101
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		requireProblem(t, w, 413, httpidem.CodeRequestTooLarge)
		require.Contains(t, w.Body.String(), "more than 100 bytes")
	})
	t.Run("may be that of a middleware around", func(t *testing.T) {
		h := http.MaxBytesHandler(guard(t, httpidem.Config{})(status(201, "")), 10)
		requireProblem(t, post(t, h, "k", "elevenbytes"), 413, httpidem.CodeRequestTooLarge)
	})
}

func TestBodyThatCannotBeRead(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{})(counted(&runs, status(201, "")))
	r := newRequest(t.Context(), "k", "")
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))), 8
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	requireProblem(t, w, 400, httpidem.CodeRequestInvalid)
	require.Zero(t, runs)
	require.Equal(t, 201, post(t, h, "k", "whole").Code, "the key was not claimed")
}

// TestRequestsOnTheWire sends bytes as a client might, and looks at the bytes that come back.
func TestRequestsOnTheWire(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		_, _ = fmt.Fprintf(w, "%d %v %s %v", r.ContentLength, r.TransferEncoding, body, r.Trailer)
	})
	server := startServer(t, guard(t, httpidem.Config{})(echo), onlyHTTP1)
	dial := func(t *testing.T) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		return conn, bufio.NewReader(conn)
	}
	send := func(t *testing.T, conn net.Conn, text string) {
		_, err := io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n"))
		require.NoError(t, err)
	}
	answer := func(t *testing.T, r *bufio.Reader) string {
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}

	t.Run("chunked, with trailers, in pieces", func(t *testing.T) {
		conn, r := dial(t)
		send(t, conn, "POST / HTTP/1.1\nHost: x\nIdempotency-Key: chunked\nTransfer-Encoding: chunked\nTrailer: X-Sum\n\n")
		for _, piece := range []string{"3\nab", "c\n", "1\nd\n0\nX-Su", "m: 1\n\n"} {
			send(t, conn, piece)
		}
		require.Equal(t, "200 -1 [chunked] abcd map[X-Sum:[1]]", answer(t, r))
	})
	t.Run("a slow body claims nothing until it is there", func(t *testing.T) {
		const head = "POST / HTTP/1.1\nHost: x\nIdempotency-Key: slow\nContent-Length: 4\n\n"
		slow, slowReader := dial(t)
		send(t, slow, head+"ab")
		quick, quickReader := dial(t)
		send(t, quick, head+"abcd")
		require.Equal(t, "200 4 [] abcd map[]", answer(t, quickReader))
		send(t, slow, "cd")
		require.Equal(t, "200 4 [] abcd map[]", answer(t, slowReader))
	})
	t.Run("a body that ends early claims nothing", func(t *testing.T) {
		conn, _ := dial(t)
		send(t, conn, "POST / HTTP/1.1\nHost: x\nIdempotency-Key: early\nContent-Length: 4\n\nab")
		tcp, ok := conn.(*net.TCPConn)
		require.True(t, ok)
		require.NoError(t, tcp.CloseWrite())
		require.Contains(t, answer(t, bufio.NewReader(conn)), httpidem.CodeRequestInvalid)
		again, r := dial(t)
		send(t, again, "POST / HTTP/1.1\nHost: x\nIdempotency-Key: early\nContent-Length: 4\n\nabcd")
		require.Equal(t, "200 4 [] abcd map[]", answer(t, r))
	})
	t.Run("Expect: 100-continue", func(t *testing.T) {
		conn, r := dial(t)
		send(t, conn, "POST / HTTP/1.1\nHost: x\nIdempotency-Key: expect\nContent-Length: 4\nExpect: 100-continue\n\n")
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
		_, err = r.ReadString('\n')
		require.NoError(t, err)
		send(t, conn, "abcd")
		require.Equal(t, "200 4 [] abcd map[]", answer(t, r))
	})
	t.Run("Expect: 100-continue, refused without the body", func(t *testing.T) {
		for _, fields := range []string{"Idempotency-Key: a, b\nContent-Length: 4", "Idempotency-Key: k\nContent-Length: 9999999", "Content-Length: 4"} {
			conn, r := dial(t)
			send(t, conn, "POST / HTTP/1.1\nHost: x\n"+fields+"\nExpect: 100-continue\n\n")
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, "HTTP/1.1 4")
		}
	})
}

func TestMethods(t *testing.T) {
	for method, guarded := range map[string]bool{
		"POST": true, "PUT": true, "PATCH": true, "DELETE": true,
		"GET": false, "HEAD": false, "OPTIONS": false, "TRACE": false, "QUERY": false, "post": false,
	} {
		t.Run(method, func(t *testing.T) {
			runs := 0
			h := guard(t, httpidem.Config{})(counted(&runs, func(w http.ResponseWriter, r *http.Request) {
				_, ok := httpidem.FromContext(r.Context())
				assert.Equal(t, guarded, ok)
			}))
			for range 2 {
				r := newRequest(t.Context(), "k", "")
				r.Method = method
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			require.Equal(t, map[bool]int{true: 1, false: 2}[guarded], runs)
		})
	}
}

func TestScopes(t *testing.T) {
	t.Run("two principals may use one key", func(t *testing.T) {
		runs := 0
		h := guard(t, httpidem.Config{Scope: httpidem.ScopeHeader("authorization")})(counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(r.Header.Get("Authorization")))
		}))
		for _, who := range []string{"Bearer a", "Bearer b"} {
			require.Equal(t, who, post(t, h, "k", "", "Authorization", who).Body.String())
		}
		for _, who := range []string{"Bearer a", "Bearer b"} {
			requireReplayed(t, post(t, h, "k", "", "Authorization", who), 200, who)
		}
		require.Equal(t, 2, runs)
	})
	t.Run("the store does not see the credentials", func(t *testing.T) {
		var store keyStore
		h := guardWith(t, &store, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})(status(200, ""))
		post(t, h, "k", "", "Authorization", "Bearer secret")
		require.Len(t, store.requests[0].Scope, 43)
		require.NotContains(t, store.requests[0].Scope, "secret")
	})
	t.Run("ScopeHeader needs one field", func(t *testing.T) {
		for _, fields := range [][]string{nil, {"Authorization", ""}, {"Authorization", "a", "Authorization", "b"}} {
			runs := 0
			h := guard(t, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")})(counted(&runs, status(200, "")))
			requireProblem(t, post(t, h, "k", "", fields...), 401, httpidem.CodeScopeUnknown)
			require.Zero(t, runs)
		}
	})
	t.Run("the function says how a request is refused", func(t *testing.T) {
		for _, test := range []struct {
			err    error
			status int
			code   string
		}{
			{errors.New("secret"), 401, httpidem.CodeScopeUnknown},
			{&httpidem.Problem{Status: 403, Code: "tenant_locked"}, 403, "tenant_locked"},
			{fmt.Errorf("wrapped: %w", &httpidem.Problem{Status: 400, Code: "anonymous"}), 400, "anonymous"},
		} {
			runs := 0
			h := guard(t, httpidem.Config{Scope: func(*http.Request) (string, error) { return "", test.err }})(counted(&runs, status(200, "")))
			w := post(t, h, "k", "")
			requireProblem(t, w, test.status, test.code)
			require.NotContains(t, w.Body.String(), "secret")
			require.Zero(t, runs)
		}
	})
	t.Run("a scope that the store does not take", func(t *testing.T) {
		var log bytes.Buffer
		h := guard(t, httpidem.Config{
			Scope:  func(*http.Request) (string, error) { return strings.Repeat("x", 256), nil },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})(status(200, ""))
		members := requireProblem(t, post(t, h, "secret-key", ""), 400, httpidem.CodeKeyInvalid)
		require.Contains(t, members["detail"], "scope")
		require.Contains(t, log.String(), "level=ERROR")
		require.Contains(t, log.String(), "scope_bytes=256")
		require.NotContains(t, log.String(), "secret-key")
	})
}

func TestRequestLimitOfAMiddlewareAround(t *testing.T) {
	h := guard(t, httpidem.Config{})(status(201, ""))
	r := newRequest(t.Context(), "k", "")
	r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(fmt.Errorf("upload: %w", &http.MaxBytesError{Limit: 10}))), 11
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	requireProblem(t, w, 413, httpidem.CodeRequestTooLarge)
}
