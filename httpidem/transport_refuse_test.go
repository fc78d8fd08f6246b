package httpidem_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// badRequests are changes to a request that make it one which net/http can't write.
var badRequests = map[string]func(*http.Request){
	"NUL in a field":            func(r *http.Request) { r.Header.Set("X-Bad", "secret\x00") },
	"line break in a field":     func(r *http.Request) { r.Header.Set("X-Bad", "secret\r\nX-Other: 1") },
	"DEL in the second line":    func(r *http.Request) { r.Header["X-Bad"] = []string{"a", "secret\x7f"} },
	"name with a space":         func(r *http.Request) { r.Header["X Bad"] = []string{"secret"} },
	"name that is empty":        func(r *http.Request) { r.Header[""] = []string{"secret"} },
	"name that is not ASCII":    func(r *http.Request) { r.Header["X-Clé"] = []string{"secret"} },
	"control character trailer": func(r *http.Request) { r.Trailer = http.Header{"X-Bad": {"secret\x00"}} },
	"name of a trailer":         func(r *http.Request) { r.Trailer = http.Header{"X Bad": nil} },
	"trailer that frames":       func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"Content-Length": {"1"}} },
	"control character in URL":  func(r *http.Request) { r.URL.RawQuery = "a=secret\n" },
	"length without a body":     func(r *http.Request) { r.Body, r.ContentLength = nil, 1 },
	"any length without a body": func(r *http.Request) { r.Body, r.ContentLength = nil, -1 },
}

func TestTransportRefusesWhatCantBeSent(t *testing.T) {
	var visits atomic.Int64
	srv, _ := serveClient(t, "HTTP/1.1", func(http.ResponseWriter, *http.Request) { visits.Add(1) })
	for name, spoil := range badRequests {
		t.Run(name, func(t *testing.T) {
			for _, attempts := range []int{1, 4} {
				base, body := newScript(replies(200)), &closeCounter{Reader: strings.NewReader("x")}
				req := scriptPost(t, body)
				spoil(req)
				kept := req.Body != nil
				_, err := trip((&httpidem.Transport{Base: base, MaxAttempts: attempts}).RoundTrip, req)
				retry := asRetryError(t, err)
				require.Zero(t, retry.Attempts)
				require.False(t, retry.MayHaveRun)
				require.NotContains(t, err.Error(), "secret")
				require.Empty(t, base.sent)
				require.Equal(t, kept, body.closed == 1, "closed %d times", body.closed)
			}
			req := newPost(t.Context(), t, srv.URL, onlyReader("x"))
			spoil(req)
			_, err := trip(srv.Client().Do, req)
			require.Error(t, err, "net/http alone does not send it either")
			require.Zero(t, visits.Load())
		})
	}
	t.Run("trailer that the body sets", func(t *testing.T) {
		req := scriptPost(t, nil)
		req.Trailer = http.Header{"X-Sum": nil}
		req.ContentLength = -1
		req.Body = io.NopCloser(readerFunc(func([]byte) (int, error) {
			req.Trailer.Set("X-Sum", "\x00")
			return 0, io.EOF
		}))
		base := newScript(replies(200))
		_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req)
		require.ErrorContains(t, err, "trailer")
		require.False(t, asRetryError(t, err).MayHaveRun)
		require.Empty(t, base.sent)
	})
}

func TestTransportSendsWhatNetHTTPSends(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"tab in a field":          func(r *http.Request) { r.Header.Set("X-Odd", "a\tb") },
		"bytes above ASCII":       func(r *http.Request) { r.Header.Set("X-Odd", "clé \xff") },
		"field without a value":   func(r *http.Request) { r.Header["X-Odd"] = nil },
		"name in lower case":      func(r *http.Request) { r.Header["x-odd!#$%&'*+-.^_`|~"] = []string{""} },
		"escapes in the URL":      func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/a\nb", "a=%00" },
		"length of an empty body": func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 1 },
	} {
		for _, protocol := range wireProtocols {
			t.Run(name+" "+protocol, func(t *testing.T) {
				var l visitLog
				srv, client := serveClient(t, protocol, func(_ http.ResponseWriter, r *http.Request) { l.note(r) })
				req := newPost(t.Context(), t, srv.URL, onlyReader(""))
				change(req)
				resp, err := trip(client.Do, req)
				require.NoError(t, err)
				require.Equal(t, 200, resp.status, resp.body)
				l.requireOne(t, 1, "")
			})
		}
	}
}

// A body that turns out to be empty may have trailers all the same. Given http.NoBody, HTTP/2 would never end the stream.
func TestTransportSendsTrailersOfAnEmptyBody(t *testing.T) {
	for _, protocol := range wireProtocols {
		t.Run(protocol, func(t *testing.T) {
			srv, client := serveClient(t, protocol, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, r.Trailer.Get("X-Sum"))
			})
			for _, text := range []string{"x", ""} {
				for name, base := range map[string]http.RoundTripper{"net/http": srv.Client().Transport, "Transport": client.Transport} {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // it hung on HTTP/2
					req := newPost(ctx, t, srv.URL, onlyReader(text))
					req.Trailer = http.Header{"X-Sum": {"7"}}
					resp, err := trip(base.RoundTrip, req)
					cancel()
					require.NoError(t, err, "%s, body %q", name, text)
					require.Equal(t, "7", resp.body, "%s, body %q", name, text)
				}
			}
		})
	}
}
