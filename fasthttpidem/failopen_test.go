package fasthttpidem_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A duplicate that waits for a request that runs is not run beside it, whatever the store comes to meanwhile.
func TestFailOpenDoesNotRunWhatIsKnownToRun(t *testing.T) {
	for name, fail := range map[string]func(begin int32, e *idem.Engine) error{
		"the store fails":   func(int32, *idem.Engine) error { return errors.New("down") },
		"the store is over": func(_ int32, e *idem.Engine) error { return e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			engine, err := idem.New(idem.Config{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, engine.Close()) })
			store := newFaultyStore(t, idem.Config{})
			store.Store = engine
			var begins, runs atomic.Int32
			store.OnBegin = func() error {
				if n := begins.Add(1); n == 3 { // the duplicate has been told, and asks to wait
					return fail(n, engine)
				}
				return nil
			}
			started, release := make(chan struct{}), make(chan struct{})
			s := startServer(t, guardWith(t, store, fasthttpidem.Config{Wait: time.Minute, FailOpen: true})(func(*fasthttp.RequestCtx) {
				if runs.Add(1) == 1 {
					close(started)
					<-release
				}
			}))
			first := s.dial(t)
			defer func() { _ = first.Close() }()
			first.sendRaw(postText("k", ""))
			<-started
			second := post(t, s, "k", "")
			close(release)
			first.answer()
			require.Equal(t, 503, second.status)
			require.Contains(t, second.body, httpidem.CodeStoreUnavailable)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// FingerprintJSON is for JSON: a form, of which it sees no body, is refused and not taken for an empty one.
func TestFingerprintJSONOfAForm(t *testing.T) {
	for _, early := range []bool{true, false} {
		s := startServer(t, guard(t, fasthttpidem.Config{Fingerprint: fasthttpidem.FingerprintJSON})(status(200, "paid")),
			func(s *fasthttp.Server) { s.DisablePreParseMultipartForm = !early })
		a := upload(t, s, "k", "b", []part{{name: "cents", content: "5"}})
		require.Equal(t, 400, a.status, a.body)
		require.Equal(t, 200, post(t, s, "empty", "").status)
	}
}

// Redact changes what is recorded of the header and the body, and not of the status.
func TestRedactLeavesTheStatus(t *testing.T) {
	redact := func(r *fasthttp.Response) {
		r.Reset()
		r.SetBodyString("redacted")
	}
	s := startServer(t, guard(t, fasthttpidem.Config{Redact: redact})(status(201, "abc")))
	first, second := post(t, s, "k", ""), post(t, s, "k", "")
	require.Equal(t, "redacted", second.body)
	require.Equal(t, first.status, second.status)
}
