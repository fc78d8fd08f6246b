package httpidem

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// A Transport is an [http.RoundTripper] that makes it safe to repeat a POST, PUT, PATCH or DELETE, and
// repeats it. Every attempt at one request carries the same key and the same body, so that a server
// that honours the key runs it once however often it arrives.
//
//	client := &http.Client{Transport: &httpidem.Transport{}}
//
// The key is the caller's, from [WithKey] or else from the header field, or a new random one for each
// call of RoundTrip. [RetryError.Key] tells which it was, and Response.Request.Header how it was sent.
//
// Another attempt follows a connection that failed, the statuses 425, 429, 502, 503 and 504, and a 409
// whose problem document has the code "in_progress". Any other answer is final, and so is the last one
// that MaxAttempts allows. So is a 409 whose document does not arrive within 5 s of its header; its
// body can be read all the same. Between attempts the Transport waits as Retry-After says, and then a random
// time below a bound that doubles from MinBackoff to MaxBackoff.
//
// A body is read to its end before the first attempt. One that is longer than MaxBodyBytes is streamed
// instead, and its request gets a single attempt; so does every request if MaxAttempts is 1. A request
// that can't be written as HTTP is refused before the first attempt: a header field or URL with a control
// character, or a ContentLength without a body.
//
// A redirect to another origin does not disclose the key: that server is given one derived from it,
// which is the same whenever the request is repeated.
//
// Requests with other methods and schemes pass untouched. The zero Transport works, all methods may be
// called concurrently, and the fields must not be changed after the first use. RoundTrip fails while
// one of them has a value that it does not take.
type Transport struct {
	// Base sends each attempt. Nil means [http.DefaultTransport].
	Base http.RoundTripper

	// Header is the name of the field that carries the key. Empty means [DefaultHeader].
	Header string

	// MaxAttempts is how often a request is sent at most, the first time included. Zero means 4. What net/http itself sends
	// again, since a connection that it had kept ended before the answer came, is part of the same attempt.
	MaxAttempts int

	// MinBackoff bounds the random wait before the second attempt. Zero means 100 ms, or MaxBackoff if
	// that is shorter.
	MinBackoff time.Duration

	// MaxBackoff bounds the random wait before any attempt. It must not be below MinBackoff. Zero means
	// 5 s, or MinBackoff if that is longer.
	MaxBackoff time.Duration

	// MaxRetryAfter is the most that is waited because a server asks for it in Retry-After. Zero means
	// 10 s.
	MaxRetryAfter time.Duration

	// AttemptTimeout bounds each attempt, from its start until the header of the response is there. An
	// attempt that takes longer counts as a failed connection. Zero means no bound but the context's.
	AttemptTimeout time.Duration

	// MaxBodyBytes is the length up to which a request body is kept in memory. Zero means 1 MiB.
	MaxBodyBytes int
}

// A RetryError says that a request with a key got no answer. It does not say that the request has not
// run. Repeating it is safe with the same key, body and URL:
//
//	req = req.Clone(httpidem.WithKey(ctx, retryErr.Key)) // and give it a new Body
//
// [http.Client.Timeout] puts an error of its own in the place of this one. Whoever wants to see it uses
// a context with a deadline instead.
type RetryError struct {
	// Key is the request's key, as the caller gave it or the Transport minted it. Of a structured-field
	// String in the header it is the value, without quotes and escapes.
	Key string

	// Attempts is how often the request was sent, without what net/http sent again by itself. It is zero if it could not be sent at all.
	Attempts int

	// MayHaveRun is false only if no attempt can have reached the application: there was none, or no
	// connection to the server, or the server answered that it is too early or that there are too many requests.
	MayHaveRun bool

	// Err is the failure of the last attempt, or of the request's body. If the context ended it is its
	// [context.Cause].
	Err error
}

// Error names everything but the key, which has no place in a log.
func (e *RetryError) Error() string {
	run := "has not run"
	if e.MayHaveRun {
		run = "may have run"
	}
	return fmt.Sprintf("httpidem: no answer, attempts %d, request %s: %v", e.Attempts, run, e.Err)
}

// Unwrap returns Err.
func (e *RetryError) Unwrap() error { return e.Err }

// Timeout reports whether Err was a timeout. [url.Error.Timeout] asks for it.
func (e *RetryError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

type clientKey struct{}

// WithKey returns a context that gives its key to the request that is sent with it through a
// [Transport]. It wins over a key in the header, so that a caller can decide on it even when a library
// builds the request. Use the context for one request only: two with one key are one to the server.
//
// The key consists of 1 to 255 printable ASCII characters, of which the space is one; RoundTrip refuses
// any other. A key with a space, a quote or a comma is sent as a structured-field String: order 12 as
// "order 12". Any other is sent as it is. Only if the header field has the same key already, the field
// stays as the caller wrote it.
//
// A key in the header field is never rewritten. RoundTrip refuses one that is empty, not printable ASCII,
// or has a space at either end, which would be lost on the way.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

// RoundTrip sends the request and repeats it as described at [Transport]. An answer of any status is
// returned without an error. If there is none the error is a [*RetryError], or another one if a field
// of the Transport or the key given by the caller is invalid, in which case nothing was sent.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	conf, err := t.withDefaults()
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if !takesKey(req) {
		return conf.Base.RoundTrip(conf.withoutForeignKey(req))
	}
	key, line, err := conf.keyOf(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	c := call{conf: conf, req: req, key: key, sentKey: line}
	if isForeign(req) {
		c.sentKey = derivedKey(key, req.URL)
	}
	return c.run()
}

// CloseIdleConnections passes the call of [http.Client.CloseIdleConnections] on to Base.
func (t *Transport) CloseIdleConnections() {
	client := http.Client{Transport: t.Base} // which knows what to do when Base is nil, or can't
	client.CloseIdleConnections()
}

// withDefaults returns a copy of t whose fields all have the value to use.
func (t *Transport) withDefaults() (Transport, error) {
	for _, field := range [...]struct {
		name  string
		value int64
	}{
		{"MaxAttempts", int64(t.MaxAttempts)},
		{"MinBackoff", int64(t.MinBackoff)},
		{"MaxBackoff", int64(t.MaxBackoff)},
		{"MaxRetryAfter", int64(t.MaxRetryAfter)},
		{"AttemptTimeout", int64(t.AttemptTimeout)},
		{"MaxBodyBytes", int64(t.MaxBodyBytes)},
	} {
		if field.value < 0 {
			return Transport{}, fmt.Errorf("httpidem: Transport.%s is %d, want zero, for the default, or more", field.name, field.value)
		}
	}
	conf := Transport{
		Base:           t.Base,
		Header:         http.CanonicalHeaderKey(cmp.Or(t.Header, DefaultHeader)),
		MaxAttempts:    cmp.Or(t.MaxAttempts, 4),
		MinBackoff:     cmp.Or(t.MinBackoff, min(100*time.Millisecond, cmp.Or(t.MaxBackoff, math.MaxInt64))),
		MaxBackoff:     cmp.Or(t.MaxBackoff, max(5*time.Second, t.MinBackoff)),
		MaxRetryAfter:  cmp.Or(t.MaxRetryAfter, 10*time.Second),
		AttemptTimeout: t.AttemptTimeout,
		// One byte more is read to see that a body is too long.
		MaxBodyBytes: min(cmp.Or(t.MaxBodyBytes, 1<<20), math.MaxInt-1),
	}
	if conf.MinBackoff > conf.MaxBackoff {
		return Transport{}, fmt.Errorf("httpidem: Transport.MinBackoff (%v) is above MaxBackoff (%v)", conf.MinBackoff, conf.MaxBackoff)
	}
	if !httpwire.IsToken(conf.Header) {
		return Transport{}, fmt.Errorf("httpidem: Transport.Header is not the name of a header field: %q", t.Header)
	}
	if conf.Base == nil {
		conf.Base = http.DefaultTransport
	}
	if conf.AttemptTimeout > 0 {
		conf.Base = timeLimited{conf.Base, conf.AttemptTimeout}
	}
	return conf, nil
}

// takesKey tells whether req is one that changes something on an HTTP server. A request that net/http
// refuses for its URL is none: it goes to Base as it is, which says at once what is wrong with it.
func takesKey(req *http.Request) bool {
	return httpwire.IsGuarded(req.Method) && req.URL != nil && req.URL.Host != "" &&
		(req.URL.Scheme == "http" || req.URL.Scheme == "https")
}

// unsendable tells what is wrong with a request that net/http refuses however often it is given it. Its
// own error would not do: some of it net/http sees only when it has a connection, and for the rest there
// is no sign that nothing was sent, as it could be the error of another Base.
func (t *Transport) unsendable(req *http.Request) error {
	if req.Body == nil && req.ContentLength != 0 {
		return fmt.Errorf("request body: none, but ContentLength is %d", req.ContentLength)
	}
	if strings.ContainsFunc(req.URL.RequestURI(), isControl) {
		return errors.New("request URL has a control character")
	}
	header := req.Header
	if _, found := header[t.Header]; found {
		header = maps.Clone(header)
		delete(header, t.Header) // the key was checked, and takes the place of what is there
	}
	for name := range req.Trailer {
		switch http.CanonicalHeaderKey(name) {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			return fmt.Errorf("request trailer: %q says how the message is framed", name)
		}
	}
	return cmp.Or(checkFields("header", header), checkFields("trailer", req.Trailer))
}

// checkFields returns an error if there is a field in h that net/http does not send. The error does not
// show the value, which may be a secret.
func checkFields(part string, h http.Header) error {
	for name, values := range h {
		if !httpwire.IsToken(name) {
			return fmt.Errorf("request %s: %q is not the name of a field", part, name)
		}
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return isControl(r) && r != '\t' }) {
				return fmt.Errorf("request %s: field %s has a control character", part, name)
			}
		}
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// keyOf returns the key of the logical request that req belongs to, and the field line that carries it.
//
// [http.Client] follows a redirect with a new request that has the header which the caller set, and so
// not a key that was minted or came from the context. That one is found in the request that the chain
// of responses began with, because RoundTrip left it there.
func (t *Transport) keyOf(req *http.Request) (key, line string, err error) {
	if first := firstOf(req); first != nil && first != req {
		if line = first.Header.Get(t.Header); line != "" {
			key, err = keyIn(line)
			return key, line, err
		}
	}
	key, given := req.Context().Value(clientKey{}).(string)
	lines := req.Header[t.Header]
	if len(lines) == 1 {
		written, invalid := keyIn(lines[0])
		// A request that is repeated with RetryError.Key still has the field of the first time. A server
		// that does not know both spellings must see the same bytes again.
		if !given || invalid == nil && written == key {
			return written, lines[0], invalid
		}
	}
	if given {
		line, err = lineOf(key)
		return key, line, err
	}
	if len(lines) > 1 {
		return "", "", fmt.Errorf("httpidem: request has %d fields %s, want one", len(lines), t.Header)
	}
	key = rand.Text()
	return key, key, nil
}

// keyIn returns the key that a field line written by the caller carries: what the middleware reads in it,
// or, if that would refuse it, the line itself. Another server may take it.
func keyIn(line string) (string, error) {
	if err := checkKey(line); err != nil {
		return "", err
	}
	if line[0] == ' ' || line[len(line)-1] == ' ' {
		return "", errors.New("httpidem: key in the header begins or ends with a space, which a field loses on its way")
	}
	if key, ok := httpwire.ParseKey([]string{line}); ok {
		return key, nil
	}
	return line, nil
}

// lineOf returns a field line from which the middleware reads key. No two keys have the same one.
func lineOf(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if len(key) > httpwire.MaxKeyBytes {
		return "", fmt.Errorf("httpidem: key given for the request has %d characters, at most %d are allowed", len(key), httpwire.MaxKeyBytes)
	}
	if httpwire.IsBareKey(key) {
		return key, nil
	}
	return strconv.Quote(key), nil // which of printable ASCII escapes the same two as RFC 9651
}

func checkKey(s string) error {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		// A new key instead of an empty one would undo what the caller wants: the same every time.
		return errors.New("httpidem: key given for the request is empty or not printable ASCII, which is space to ~")
	}
	return nil
}

// firstOf returns the request that the chain of redirects to req began with: req itself if there was no
// redirect, nil if it can't be told because a RoundTripper around this one removed a link.
func firstOf(req *http.Request) *http.Request {
	for req.Response != nil {
		if req = req.Response.Request; req == nil {
			return nil
		}
	}
	return req
}

// isForeign tells whether req was redirected to another origin than the caller sent it to.
func isForeign(req *http.Request) bool {
	first := firstOf(req)
	return first != req && (first == nil || first.URL == nil || origin(first.URL) != origin(req.URL))
}

// withoutForeignKey drops the key that http.Client copied when it follows a redirect of a POST with a
// GET to another origin.
func (t *Transport) withoutForeignKey(req *http.Request) *http.Request {
	if req.URL == nil || len(req.Header[t.Header]) == 0 || !isForeign(req) {
		return req
	}
	out := req.WithContext(req.Context())
	out.Header = req.Header.Clone()
	out.Header.Del(t.Header)
	return out
}

// origin returns scheme, host and port of u, in a form that can be compared.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// derivedKey returns the key for a server that key was not meant for. It is derived and not minted,
// because a caller that repeats a request with its own key wants it to run once behind the redirect too.
func derivedKey(key string, u *url.URL) string {
	return idem.FingerprintOf([]byte(key), []byte(origin(u))).String()
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // nothing was sent, so that its error changes nothing
	}
}
