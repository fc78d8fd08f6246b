package httpidem

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

const (
	// responseRoom is how much room for the response there is in any case after the request, in bytes. A
	// replay or a response of the common size then costs no allocation of its own.
	responseRoom = 1 << 10

	// maxTrustedLength bounds what is allocated because a request says how long it is, in bytes, and what
	// is kept for another request. Its sender has to send them before more is.
	maxTrustedLength = 64 << 10
)

// An intake is what is known of a request before its handler runs.
type intake struct {
	*scratch
	request idem.Request // its Buf is the room for the response
	body    []byte
	outcome idem.Outcome // what the store says to request
}

// read fills in, or returns how the request is to be refused. It looks at what is cheap to know first:
// a client that waits for 100 Continue need not send the body of a request that is refused anyway.
func (g *guard) read(in *intake, r *http.Request) *Problem {
	lines := r.Header[g.conf.Header]
	if len(lines) == 0 {
		p := NewProblem(CodeKeyMissing)
		p.Detail = "The request needs the header field " + g.conf.Header + "."
		return p
	}
	key, ok := httpwire.ParseKey(lines)
	if !ok {
		return NewProblem(CodeKeyInvalid) // the key itself is not repeated: it may be hostile, or a secret
	}
	scope, err := g.conf.Scope(r)
	if err != nil {
		return ProblemOf(err, CodeScopeUnknown)
	}
	in.request = idem.Request{Scope: scope, Key: key}

	// One buffer for what the fingerprint is made of, the body in it, and a replay or a response after it.
	buf := slices.Grow(in.buf[:0], 64+len(r.URL.Path)+len(r.URL.RawQuery)+int(min(max(r.ContentLength, 0), maxTrustedLength))+responseRoom)
	buf = httpwire.AppendPrefix(buf, r.Method, r.URL.EscapedPath(), r.URL.RawQuery)
	start := len(buf)
	buf, err = g.readBody(buf, r)
	in.buf = buf
	if isConsumed(r, len(buf)-start, err) {
		return g.tooLate(r)
	}
	if err != nil {
		return unreadable(err)
	}
	in.body = buf[start:]
	in.request.Buf = buf[len(buf):]
	if g.conf.Fingerprint == nil {
		in.request.Fingerprint = httpwire.SealFingerprint(buf, start)
	} else if in.request.Fingerprint, err = g.conf.Fingerprint(r, in.body); err != nil {
		return ProblemOf(err, CodeRequestInvalid)
	}
	return nil
}

// readBody appends the body of r to buf, and closes it. It reads up to the end, and not just as much as
// the length says: only then does net/http watch whether the client leaves, and has the request its
// trailers. A body that is refused is not closed, so that the server decides whether the rest of it is
// worth reading.
func (g *guard) readBody(buf []byte, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return buf, nil
	}
	limit := g.conf.MaxRequestBytes
	if r.ContentLength > int64(limit) {
		return buf, &http.MaxBytesError{Limit: int64(limit)}
	}
	for start := len(buf); ; {
		// append grows by half or more, so that the copying is linear, and a sender gets no more memory
		// than in proportion to what it has sent.
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if len(buf)-start > limit {
			return buf, &http.MaxBytesError{Limit: int64(limit)}
		}
		if err == io.EOF {
			_ = r.Body.Close() // all of it is here
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// isConsumed tells whether somebody has read of the body before the middleware got n bytes and err of it: a
// middleware around it, or the Scope. What is left may be the same for two requests that are not. net/http's
// own body does not just end before its length. Where that is not known there is only the form to look at,
// of which ParseForm makes an empty one for a body that it leaves alone (JSON).
func isConsumed(r *http.Request, n int, err error) bool {
	switch {
	case err != nil:
		return errors.Is(err, http.ErrBodyReadAfterClose)
	case r.ContentLength > 0:
		return int64(n) < r.ContentLength
	default:
		return len(r.PostForm) > 0 || r.MultipartForm != nil
	}
}

// tooLate returns how a request is refused whose body was consumed. That is for whoever built the server
// to mend; the client can do nothing.
func (g *guard) tooLate(r *http.Request) *Problem {
	g.conf.Logger.ErrorContext(r.Context(), "httpidem: request refused: its body was read before the middleware could", "path", r.URL.Path)
	p := NewProblem(CodeRequestInvalid)
	p.Detail = httpwire.ReadTooEarly
	return p
}

// unreadable returns how a request is refused whose body could not be read.
func unreadable(err error) *Problem {
	// The limit may be that of a middleware around this one.
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		p := NewProblem(CodeRequestTooLarge)
		p.Detail = httpwire.TooLarge(tooLarge.Limit)
		return p
	}
	return NewProblem(CodeRequestInvalid)
}

// restore returns the request as the handler shall see it: with its body unread. The request that came in
// is not changed, because whoever is around the middleware may look at it afterwards.
func (in *intake) restore(ctx context.Context, r *http.Request, b *body) *http.Request {
	restored := r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		restored.Body = b
	}
	return restored
}

// serve calls the handler with the restored request, and removes the files of the form that it has parsed.
// net/http does that for the request that it made itself, and no copy of it.
func (in *intake) serve(ctx context.Context, next http.Handler, w http.ResponseWriter, r *http.Request, b *body) {
	restored := in.restore(ctx, r, b)
	defer func() {
		if form := restored.MultipartForm; form != nil && form != r.MultipartForm {
			_ = form.RemoveAll()
		}
	}()
	next.ServeHTTP(w, restored)
}

// A body is the body of a request, which was read before.
type body struct {
	mu     sync.Mutex // a proxy's transport may still read when the handler has closed it
	data   []byte     // what was not read yet
	closed bool
}

// Read returns what net/http's own body would.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// end takes what is left of the body away: its memory is used again after the handler has returned.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data, b.closed = nil, true
}

// Close makes Read fail. The body that came from the client was closed when it had been read.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}
