package httpidem

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// maxProblemBytes is how much of a 409 is read to find its code. A problem document has a few
	// hundred bytes; a longer one is not ours and is left for the caller.
	maxProblemBytes = 16 << 10

	// maxProblemTime is how long a 409 is read for it, from its header on. A server sends a problem
	// document in one piece with its header, so that this only has to outlast packets that were lost, and a client with
	// much else to do.
	maxProblemTime = 5 * time.Second

	// maxDrainBytes and maxDrainTime bound what is spent on the body of an answer that nobody will see.
	// Read to its end it leaves the connection usable; more than this costs more than a new connection.
	maxDrainBytes = 16 << 10
	maxDrainTime  = 100 * time.Millisecond
)

// A call is one logical request on its way through a Transport.
type call struct {
	conf    Transport // with defaults
	req     *http.Request
	key     string // of the logical request
	sentKey string // what the server is given: key, or one derived from it

	// One of these two is set if the request has a body: its bytes, or, if they are not kept, what
	// remains to be read of it.
	frozen []byte
	stream io.ReadCloser

	attempts int // how often Base was given the request

	// mayHaveRun stays true once it is: an attempt that surely failed says nothing of those before it.
	mayHaveRun bool
}

// run sends the request until an answer is final or there are no attempts left.
func (c *call) run() (*http.Response, error) {
	if err := c.prepare(); err != nil {
		return nil, c.fail(err)
	}
	for {
		resp, again, err := c.attempt()
		if again && c.attempts < c.conf.MaxAttempts {
			if err = c.pause(resp, err); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, c.fail(err)
		}
		return resp, nil
	}
}

// fail returns the error for the caller. Its key is not the one that a server behind a redirect was
// given, because a repetition begins in front of the redirect.
func (c *call) fail(err error) error {
	return &RetryError{Key: c.key, Attempts: c.attempts, MayHaveRun: c.mayHaveRun, Err: err}
}

// prepare makes the request ready to be sent, or tells why it can't be.
func (c *call) prepare() error {
	err := c.conf.unsendable(c.req)
	if c.req.Context().Err() != nil {
		err = context.Cause(c.req.Context())
	}
	if err != nil {
		closeBody(c.req)
		return err
	}
	return c.takeBody()
}

// takeBody reads the body into memory, so that all attempts send the same bytes whatever the caller's
// GetBody would return. If there is no second attempt, because none was asked for or the body is too
// long, it leaves the body to be streamed.
func (c *call) takeBody() error {
	body, limit := c.req.Body, int64(c.conf.MaxBodyBytes)
	if body == nil || body == http.NoBody {
		return nil
	}
	// Base gets the caller's own body here, of which net/http may know how to send it faster.
	if c.conf.MaxAttempts == 1 || c.req.ContentLength > limit {
		c.conf.MaxAttempts, c.stream = 1, body
		return nil
	}
	head, err := readAtMost(c.req.Context(), body, limit+1)
	if err == nil && int64(len(head)) > limit {
		c.conf.MaxAttempts, c.stream = 1, putBack(head, body)
		return nil
	}
	closeBody(c.req)
	if err != nil {
		return fmt.Errorf("request body: %w", err)
	}
	// A wrong length is refused, as net/http would: it means that part of the body is missing.
	if want := c.req.ContentLength; want > 0 && want != int64(len(head)) {
		return fmt.Errorf("request body: %d bytes, but ContentLength is %d", len(head), want)
	}
	c.frozen = head
	return checkFields("trailer", c.req.Trailer) // again, for the body may have set it when it was read
}

// readAtMost reads up to limit bytes, or until ctx ends. The reading goes on in a goroutine then, as it
// would in net/http: only the caller can end a Read that does not return when its body is closed.
func readAtMost(ctx context.Context, body io.Reader, limit int64) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1) // with room, lest the goroutine waits for a receiver that left
	go func() {
		data, err := io.ReadAll(io.LimitReader(body, limit))
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// attempt sends the request once and tells whether the outcome is one that another attempt may change.
func (c *call) attempt() (resp *http.Response, again bool, err error) {
	c.attempts++
	// The hooks may be called by other goroutines, and after RoundTrip has returned.
	var wanted, connected atomic.Bool
	out := c.newRequest(httptrace.WithClientTrace(c.req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { wanted.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	resp, err = c.conf.Base.RoundTrip(out)
	if err != nil {
		// Only a Base that reports connections can prove that there was none. Whether a request was
		// written is of no use: it may be on its way when RoundTrip gives up.
		c.mayHaveRun = c.mayHaveRun || connected.Load() || !wanted.Load()
		if c.req.Context().Err() != nil {
			return nil, false, c.ended(err)
		}
		return nil, !isPermanent(err), err
	}
	// The next request of a redirect looks here for the key. A Base that sets Request may have changed
	// it, which is its business as long as the key is there.
	if resp.Request == nil || resp.Request.Header.Get(c.conf.Header) != c.sentKey {
		resp.Request = out
	}
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		return resp, true, nil // by their definitions the request was turned away
	// These come from somebody in front of the application, or from one that can't work now. A 500 is
	// not among them: the application ran into a fault, and mostly will again.
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	// Most conflicts are with the state of a resource, which asking again does not change.
	case http.StatusConflict:
		again = c.attempts < c.conf.MaxAttempts && isInProgress(resp)
	}
	c.mayHaveRun = true
	return resp, again, nil
}

// newRequest returns a copy of the request for one attempt. It shares nothing that may be written to:
// net/http may still be sending the attempt before.
func (c *call) newRequest(ctx context.Context) *http.Request {
	out := c.req.WithContext(ctx)
	out.Header = c.req.Header.Clone()
	if out.Header == nil {
		out.Header = http.Header{}
	}
	out.Header.Set(c.conf.Header, c.sentKey)
	switch {
	case c.stream != nil:
		out.Body = c.stream // GetBody stays the caller's
	case c.frozen != nil:
		out.GetBody = func() (io.ReadCloser, error) { return c.newBody(), nil }
		out.Body = c.newBody()
		out.Trailer = c.req.Trailer.Clone() // the caller's body set it when it was read
		if len(out.Trailer) == 0 {          // with a known length HTTP/1 would not send it
			out.ContentLength = int64(len(c.frozen))
		}
	}
	return out
}

// newBody returns a reader of the frozen body, in a form whose type tells net/http that it is in memory
// or empty.
func (c *call) newBody() io.ReadCloser {
	if len(c.frozen) == 0 && len(c.req.Trailer) == 0 { // trailers make HTTP/2 wait for the end of a body
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(c.frozen))
}

// pause disposes of an outcome that is not final and waits for the time of the next attempt. The random
// time comes on top of what the server asks for, lest all whom it told the same return together.
func (c *call) pause(resp *http.Response, failure error) error {
	// The whole time below the bound is random. With half of it fixed, clients that failed together
	// would still come in waves.
	bound := c.conf.MinBackoff
	for range c.attempts - 1 {
		if bound > c.conf.MaxBackoff/2 { // not bound*2 > MaxBackoff, which may overflow
			bound = c.conf.MaxBackoff
			break
		}
		bound *= 2
	}
	wait := rand.N(bound)
	if resp != nil {
		after := retryAfter(resp.Header, c.conf.MaxRetryAfter)
		wait = max(after, after+wait) // the sum may overflow
		failure = fmt.Errorf("status %d", resp.StatusCode)
		discard(resp.Body)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.req.Context().Done():
	}
	if c.req.Context().Err() != nil { // also when both were ready, of which select takes either
		return c.ended(failure)
	}
	return nil
}

// ended returns the cause of the context's end, and what had failed until then: a deadline that passed
// during the third attempt is seldom what is wrong.
func (c *call) ended(failure error) error {
	cause := context.Cause(c.req.Context())
	if errors.Is(failure, cause) {
		return failure
	}
	return fmt.Errorf("%w, after %w", cause, failure)
}

// isPermanent tells whether err is about who the server is, which no repetition changes.
func isPermanent(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	return untrusted || notTLS
}

// isInProgress tells whether a 409 says that another request runs under the key. What it reads of the
// body it puts back.
func isInProgress(resp *http.Response) bool {
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/problem+json" {
		return false
	}
	var head []byte
	if head, resp.Body = peek(resp.Body); head == nil {
		return false
	}
	// Of a longer document only the beginning is parsed, which fails, and that is as well.
	var problem struct {
		Code string `json:"code"`
	}
	return json.Unmarshal(head, &problem) == nil && problem.Code == CodeInProgress
}

// peek returns the beginning of body, nil if it does not come in time, and a body that has it in front
// again. Only closing a body ends a Read of it, and the caller shall have it whole. So one that takes too
// long goes on in its goroutine, until there is something to read or the caller closes the body.
func peek(body io.ReadCloser) ([]byte, io.ReadCloser) {
	done := make(chan []byte, 1) // with room, lest the goroutine waits for a caller that does not read
	go func() {
		// An error is left for the caller to meet again after the bytes that came before it.
		head, _ := io.ReadAll(io.LimitReader(body, maxProblemBytes))
		done <- head
	}()
	timer := time.NewTimer(maxProblemTime)
	defer timer.Stop()
	select {
	case head := <-done:
		return head, putBack(head, body)
	case <-timer.C:
		return nil, &lateBody{ReadCloser: body, head: done}
	}
}

// A lateBody is a body of which another goroutine still reads the head.
type lateBody struct {
	io.ReadCloser // gives what follows the head
	head          <-chan []byte
	all           io.Reader // nil until the head is there
}

func (b *lateBody) Read(p []byte) (int, error) {
	if b.all == nil {
		b.all = io.MultiReader(bytes.NewReader(<-b.head), b.ReadCloser)
	}
	return b.all.Read(p)
}

// putBack returns body with head, which was read from it, in front again.
func putBack(head []byte, body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), body), body}
}

// retryAfter returns how long the server asks to wait, at most limit; zero if it does not say. A date
// is compared with the server's own clock when the answer has it.
func retryAfter(h http.Header, limit time.Duration) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		if seconds > uint64(limit/time.Second) { // ParseUint returns the largest number when out of range
			return limit
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), limit)
}

// discard reads what is left of a body, within bounds, and closes it. A server that is overloaded may
// send a header and then nothing, which must not hold up the next attempt.
func discard(body io.ReadCloser) {
	timer := time.AfterFunc(maxDrainTime, func() { _ = body.Close() })
	defer timer.Stop()
	// An error only means that the connection is not used again.
	_, _ = io.CopyN(io.Discard, body, maxDrainBytes)
	_ = body.Close()
}

// timeLimited is a RoundTripper that ends an attempt whose response does not begin in time. A context
// with a timeout would not do, for it would also end the reading of the body.
type timeLimited struct {
	base  http.RoundTripper
	limit time.Duration
}

func (t timeLimited) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	// Not context.DeadlineExceeded: that would look like the end of the caller's context.
	timeout := fmt.Errorf("httpidem: no response within %v: %w", t.limit, os.ErrDeadlineExceeded)
	timer := time.AfterFunc(t.limit, func() { cancel(timeout) }) // the first cause is the one that stays
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if !timer.Stop() {
		cancel(timeout) // the timer's own call may come too late for the next line
	}
	if errors.Is(context.Cause(ctx), timeout) {
		if err == nil && resp.Body != nil { // they came together; the body can't be read any more
			_ = resp.Body.Close()
		}
		return nil, timeout
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if conn, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = cancelingConn{conn, cancel}
	} else if resp.Body != nil {
		resp.Body = cancelingBody{resp.Body, cancel}
	}
	return resp, nil
}

// cancelingBody releases the context of a response when its body is closed.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b cancelingBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// cancelingConn is a cancelingBody that is a connection too, of an answer that switched protocols.
type cancelingConn struct {
	io.ReadWriteCloser
	cancel context.CancelCauseFunc
}

func (c cancelingConn) Close() error {
	return cancelingBody{c.ReadWriteCloser, c.cancel}.Close()
}

// CloseWrite is what the bodies of net/http have for httputil.ReverseProxy.
func (c cancelingConn) CloseWrite() error {
	if conn, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return fmt.Errorf("httpidem: CloseWrite: %w", http.ErrNotSupported)
}
