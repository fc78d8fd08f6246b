package httpidem_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A reply is what a script does with a request.
type reply func(*http.Request) (*http.Response, error)

// A script is a RoundTripper that gives its answers in order, the last one for ever, and keeps what it
// was sent. It stands in for the network where time matters, because sockets don't work in a bubble.
type script struct {
	answers []reply

	mu   sync.Mutex
	sent []delivery
}

// A delivery is one request as the server would see it.
type delivery struct {
	key    string
	body   string
	length int64
	at     time.Time
	req    *http.Request
}

func newScript(answers ...reply) *script {
	return &script{answers: answers}
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	s.mu.Lock()
	s.sent = append(s.sent, delivery{strings.Join(req.Header["Idempotency-Key"], "|"), string(body), req.ContentLength, time.Now(), req})
	answer := s.answers[min(len(s.sent), len(s.answers))-1]
	s.mu.Unlock()
	return answer(req)
}

// keys returns the distinct keys that were sent, in order.
func (s *script) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, r := range s.sent {
		if len(keys) == 0 || keys[len(keys)-1] != r.key {
			keys = append(keys, r.key)
		}
	}
	return keys
}

// waits returns the time between each request and the next.
func (s *script) waits() []time.Duration {
	var waits []time.Duration
	for i := 1; i < len(s.sent); i++ {
		waits = append(waits, s.sent[i].at.Sub(s.sent[i-1].at))
	}
	return waits
}

// replies answers with a status, header fields given as "Name: value", and no body.
func replies(code int, fields ...string) reply {
	return repliesBody(code, "", fields...)
}

func repliesBody(code int, body string, fields ...string) reply {
	return func(*http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			resp.Header.Add(name, value)
		}
		return resp, nil
	}
}

// A result is an answer as the caller of a Transport has it: read to the end, and closed.
type result struct {
	status int
	header http.Header
	body   string
	sent   *http.Request
}

// trip sends a request and reads the answer. If that fails there is a result as well as an error.
func trip(send func(*http.Request) (*http.Response, error), req *http.Request) (*result, error) {
	resp, err := send(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	return &result{resp.StatusCode, resp.Header, string(body), resp.Request}, errors.Join(err, resp.Body.Close())
}

const asProblem = "Content-Type: application/problem+json"

var errCut = errors.New("connection cut")

func cutOff(*http.Request) (*http.Response, error) { return nil, errCut }

func scriptPost(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pay.example/payments", body)
	require.NoError(t, err)
	return req
}

// onlyReader hides everything that would let a body be rewound or measured.
func onlyReader(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

func TestTransportSendsOneKeyAndOneBody(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"rewindable":     func() io.Reader { return strings.NewReader("amount=5") },
		"not rewindable": func() io.Reader { return onlyReader("amount=5") },
		"none":           func() io.Reader { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := newScript(replies(503), cutOff, replies(201))
				resp, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, body()))
				require.NoError(t, err)
				require.Equal(t, 201, resp.status)
				require.Len(t, base.sent, 3)
				require.Len(t, base.keys(), 1)
				require.GreaterOrEqual(t, len(base.keys()[0]), 26, "128 bits in base 32")
				want := ""
				if b := body(); b != nil {
					want = "amount=5"
				}
				for _, s := range base.sent {
					require.Equal(t, want, s.body)
					require.EqualValues(t, len(want), s.length)
				}
				require.Equal(t, base.keys()[0], resp.sent.Header.Get("Idempotency-Key"))
			})
		})
	}
}

func TestTransportKey(t *testing.T) {
	send := func(t *testing.T, tr *httpidem.Transport, req *http.Request) string {
		t.Helper()
		base := newScript(replies(200))
		conf := *tr
		conf.Base = base
		_, err := trip(conf.RoundTrip, req)
		require.NoError(t, err)
		require.Len(t, base.sent, 1)
		return base.sent[0].key
	}
	t.Run("is new for each request", func(t *testing.T) {
		tr := &httpidem.Transport{}
		req := scriptPost(t, nil)
		first := send(t, tr, req)
		require.NotEqual(t, first, send(t, tr, req))
	})
	t.Run("is the header's", func(t *testing.T) {
		req := scriptPost(t, nil)
		req.Header.Set("Idempotency-Key", `"order-7"`)
		require.Equal(t, `"order-7"`, send(t, &httpidem.Transport{}, req))
	})
	t.Run("is the context's rather than the header's", func(t *testing.T) {
		req := scriptPost(t, nil)
		req.Header.Set("Idempotency-Key", "made by a library")
		req.Header.Add("Idempotency-Key", "twice")
		req = req.WithContext(httpidem.WithKey(t.Context(), "order-7"))
		require.Equal(t, "order-7", send(t, &httpidem.Transport{}, req))
	})
	t.Run("goes into another field", func(t *testing.T) {
		base := newScript(replies(200))
		_, err := trip((&httpidem.Transport{Base: base, Header: "x-request-key"}).RoundTrip, scriptPost(t, nil))
		require.NoError(t, err)
		require.NotEmpty(t, base.sent[0].req.Header["X-Request-Key"])
		require.Empty(t, base.sent[0].key)
	})
	t.Run("is only for methods that change something", func(t *testing.T) {
		for _, method := range []string{"", "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"} {
			req := scriptPost(t, nil)
			req.Method = method
			base := newScript(replies(503))
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req)
			require.NoError(t, err)
			require.Len(t, base.sent, 1, "no retries either")
			require.Same(t, req, base.sent[0].req)
		}
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			req := scriptPost(t, nil)
			req.Method = method
			require.NotEmpty(t, send(t, &httpidem.Transport{}, req), method)
		}
	})
	t.Run("leaves a request with an unusable URL to Base", func(t *testing.T) {
		for _, url := range []string{"ftp://pay.example/", "/payments", "http:///payments"} {
			req, err := http.NewRequest(http.MethodPost, url, nil)
			require.NoError(t, err)
			require.Empty(t, send(t, &httpidem.Transport{}, req), url)
		}
	})
	t.Run("is refused", func(t *testing.T) {
		for name, change := range map[string]func(*http.Request) *http.Request{
			"empty in the context": func(r *http.Request) *http.Request { return r.WithContext(httpidem.WithKey(r.Context(), "")) },
			"line break":           func(r *http.Request) *http.Request { return r.WithContext(httpidem.WithKey(r.Context(), "a\nb")) },
			"not ASCII":            func(r *http.Request) *http.Request { return r.WithContext(httpidem.WithKey(r.Context(), "ключ")) },
			"empty in the header":  func(r *http.Request) *http.Request { r.Header.Set("Idempotency-Key", ""); return r },
			"two lines": func(r *http.Request) *http.Request {
				r.Header["Idempotency-Key"] = []string{"a", "b"}
				return r
			},
		} {
			base, body := newScript(replies(200)), &closeCounter{Reader: strings.NewReader("x")}
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, change(scriptPost(t, body)))
			require.ErrorContains(t, err, map[bool]string{false: "empty or not printable", true: "2 fields"}[name == "two lines"], name)
			require.Empty(t, base.sent, name)
			require.Equal(t, 1, body.closed, name)
		}
	})
}

func TestTransportLeavesTheRequestAlone(t *testing.T) {
	for _, answer := range []reply{replies(200), cutOff} {
		req := scriptPost(t, strings.NewReader("x"))
		req.Header.Set("X-A", "1")
		before, header := *req, req.Header.Clone()
		resp, err := trip((&httpidem.Transport{Base: newScript(answer), MaxAttempts: 2, MaxBackoff: 1}).RoundTrip, req)
		require.NotEqual(t, resp == nil, err == nil)
		require.Equal(t, header, req.Header)
		require.Equal(t, before.ContentLength, req.ContentLength)
		require.Equal(t, before.Body, req.Body)
		require.Nil(t, req.Response)
	}
	t.Run("even without a header", func(t *testing.T) {
		req := scriptPost(t, nil)
		req.Header = nil
		_, err := trip((&httpidem.Transport{Base: newScript(replies(200))}).RoundTrip, req)
		require.NoError(t, err)
		require.Nil(t, req.Header)
	})
}

func TestTransportRefusesBadFields(t *testing.T) {
	for want, tr := range map[string]*httpidem.Transport{
		"MaxAttempts is -1, want zero":            {MaxAttempts: -1},
		"MinBackoff is -1, want zero":             {MinBackoff: -1},
		"MaxBackoff is -1, want zero":             {MaxBackoff: -1},
		"MaxRetryAfter is -1, want zero":          {MaxRetryAfter: -1},
		"AttemptTimeout is -1, want zero":         {AttemptTimeout: -1},
		"MaxBodyBytes is -1, want zero":           {MaxBodyBytes: -1},
		"MinBackoff (2s) is above MaxBackoff":     {MinBackoff: 2 * time.Second, MaxBackoff: time.Second},
		`not the name of a header field: "a b"`:   {Header: "a b"},
		`not the name of a header field: "clé"`:   {Header: "clé"},
		`not the name of a header field: "k:"`:    {Header: "k:"},
		`not the name of a header field: "k\r\n"`: {Header: "k\r\n"},
	} {
		base, body := newScript(replies(200)), &closeCounter{Reader: strings.NewReader("x")}
		tr.Base = base
		_, err := trip(tr.RoundTrip, scriptPost(t, body))
		require.ErrorContains(t, err, want)
		require.Empty(t, base.sent)
		require.Equal(t, 1, body.closed, "a RoundTripper closes the body whatever happens")
	}
	t.Run("but takes one bound without the other", func(t *testing.T) {
		for _, tr := range []*httpidem.Transport{{MinBackoff: time.Hour}, {MaxBackoff: 1}, {MaxBodyBytes: math.MaxInt}} {
			base := newScript(replies(200))
			tr.Base = base
			_, err := trip(tr.RoundTrip, scriptPost(t, onlyReader("x")))
			require.NoError(t, err)
			require.Equal(t, "x", base.sent[0].body)
		}
	})
}

// closeCounter is a body that counts how often it was closed.
type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }
