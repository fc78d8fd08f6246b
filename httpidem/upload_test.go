package httpidem_test

import (
	"bytes"
	"fmt"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// A form that is too large for the memory lies in files, which are gone after the answer as they are without the middleware.
func TestFilesOfAFormAreRemoved(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error // of the store
		end  func()
	}{
		{"answered", nil, func() {}},
		{"panicked", nil, func() { panic(http.ErrAbortHandler) }},
		{"without a store", httpcases.ErrDown, func() {}},
		{"panicked without a store", httpcases.ErrDown, func() { panic(http.ErrAbortHandler) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			files := func() []string {
				list, err := filepath.Glob(filepath.Join(dir, "multipart-*"))
				assert.NoError(t, err)
				return list
			}
			store := newFaultyStore(t, idem.Config{})
			store.OnBegin = func() error { return test.err }
			server := startServer(t, guardWith(t, store, httpidem.Config{FailOpen: true})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				assert.NoError(t, r.ParseMultipartForm(1))
				assert.NotEmpty(t, files())
				test.end()
			})), onlyHTTP1)
			var body bytes.Buffer
			form := multipart.NewWriter(&body)
			file, err := form.CreateFormFile("file", "file.bin")
			require.NoError(t, err)
			_, err = file.Write(bytes.Repeat([]byte("x"), 500_000))
			require.NoError(t, err)
			require.NoError(t, form.Close())
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, &body)
			require.NoError(t, err)
			req.Header.Set("Content-Type", form.FormDataContentType())
			req.Header.Set(httpidem.DefaultHeader, "k")
			resp, err := server.client(t).Do(req)
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			server.Close() // which waits for the handler
			require.Empty(t, files())
		})
	}
}

func TestLimitsMayBeAsLargeAsAnInt(t *testing.T) {
	h := guard(t, httpidem.Config{MaxRequestBytes: math.MaxInt, MaxResponseBytes: math.MaxInt})(status(201, "ok"))
	require.Equal(t, 201, post(t, h, "k", "body").Code)
}

// A keeper's timer is left to the next claim. It must not hold what requests were read into until it fires.
func TestMemoryOfRequestsIsNotHeldByTimers(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"released": status(500, ""),
		"stored":   status(200, ""),
		"aborted":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for _, size := range []int{60_000, 1 << 20} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				var buffers []weak.Pointer[byte]
				var writers []weak.Pointer[httptest.ResponseRecorder]
				h := guard(t, httpidem.Config{Fingerprint: func(r *http.Request, body []byte) (idem.Fingerprint, error) {
					buffers = append(buffers, weak.Make(&body[0]))
					return idem.FingerprintOf(body), nil
				}})(serve)
				for i := range 3 {
					func() {
						defer func() { _ = recover() }()
						r := newRequest(t.Context(), fmt.Sprint("k", i), strings.Repeat("x", size))
						w := httptest.NewRecorder()
						writers = append(writers, weak.Make(w))
						h.ServeHTTP(w, r)
					}()
				}
				require.Len(t, buffers, 3)
				for range 4 { // a pool keeps what is in it for two
					runtime.GC()
				}
				for i := range buffers {
					require.Nil(t, buffers[i].Value(), "what the request was read into")
					require.Nil(t, writers[i].Value(), "what the run knows")
				}
				runtime.KeepAlive(h)
			})
		}
	}
}
