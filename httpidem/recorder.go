package httpidem

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// A recorder is the http.ResponseWriter of a handler that runs under a claim. It keeps what the handler
// writes, so that it can be recorded before anything of it is sent.
//
// A handler that flushes, or writes more than limit, turns the recorder over to streaming: everything
// goes to the client at once from then on, and what is within the limit is kept besides. That the client
// is gone does not show in the results of Write and Flush, since the operation has to end all the same.
//
// It has no method Unwrap on purpose: with it [http.ResponseController] would find the writer below, and
// so could a handler. The methods that a controller looks for are all here.
type recorder struct {
	w      http.ResponseWriter
	limit  int // of body, in bytes
	logger *slog.Logger

	entry []field // the header before the handler touched it
	head  []field // the header as it stood at WriteHeader

	// What follows is only touched by the handler and, after it, by the run. net/http's own writers don't
	// allow concurrent calls either.
	status    int   // zero: WriteHeader was not called yet
	declared  int64 // the Content-Length that the handler set, or -1
	written   int64 // bytes that the handler wrote, also those above declared
	body      []byte
	sniffed   int  // how many bytes of body were there when the header was sent, or had to be
	changed   bool // the handler has changed the header since WriteHeader
	streaming bool // the header was sent
	dropped   bool // the body was too large, and is not kept
	hijacked  bool
	http1     bool // the rules of net/http's HTTP/1 server about Content-Length and 101 apply; set by init
}

// init prepares a recorder. head and body are empty slices with capacity.
func (rec *recorder) init(w http.ResponseWriter, r *http.Request, conf *Config, head []field, body []byte) {
	rec.w, rec.logger, rec.limit, rec.head, rec.body, rec.declared = w, conf.Logger, conf.MaxResponseBytes, head, body, -1
	rec.http1 = r.ProtoMajor == 1
	if h := w.Header(); len(h) > 0 {
		rec.entry = snapshot(nil, h)
	}
}

// Header returns the map of the writer below, as it would be without the recorder: what a middleware
// around this one set is in it.
func (rec *recorder) Header() http.Header { return rec.w.Header() }

// WriteHeader passes informational statuses on and keeps the first other one. HTTP/2 has no 101, and treats
// it like the rest of them.
func (rec *recorder) WriteHeader(code int) {
	if rec.hijacked {
		rec.w.WriteHeader(code) // which complains
		return
	}
	if rec.status != 0 {
		rec.logger.Warn("httpidem: superfluous call of WriteHeader", "status", code)
		return
	}
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", code)) // as net/http does, and as early
	}
	if code < 200 && (code != http.StatusSwitchingProtocols || !rec.http1) {
		rec.w.WriteHeader(code)
		return
	}
	rec.status = code
	// The map goes on being the handler's, and what is done to it from here on must not show in the answer.
	rec.head = snapshot(rec.head, rec.w.Header())
	if length, ok := get(rec.head, "Content-Length"); ok {
		if n, err := strconv.ParseInt(length, 10, 64); err == nil && n >= 0 {
			rec.declared = n
		}
	}
	if code == http.StatusSwitchingProtocols {
		rec.dropped = true // what follows is another protocol
		rec.stream()
	}
}

func (rec *recorder) Write(p []byte) (int, error) {
	keep, err := rec.admit(len(p))
	if err != nil || len(p) == 0 {
		return 0, err
	}
	if keep {
		rec.body = append(rec.body, p...)
	}
	if rec.streaming {
		_, _ = rec.w.Write(p)
	}
	return len(p), nil
}

// WriteString is Write without a conversion.
func (rec *recorder) WriteString(s string) (int, error) {
	keep, err := rec.admit(len(s))
	if err != nil || s == "" {
		return 0, err
	}
	if keep {
		rec.body = append(rec.body, s...)
	}
	if rec.streaming {
		_, _ = io.WriteString(rec.w, s)
	}
	return len(s), nil
}

// ReadFrom makes io.Copy work as with the writer below, and everything pass through Write.
func (rec *recorder) ReadFrom(src io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rec}, src)
}

// admit decides about n more bytes: an error refuses them, as net/http would, and keep tells whether they
// are to be kept. It starts streaming if they don't fit.
func (rec *recorder) admit(n int) (keep bool, err error) {
	if rec.hijacked {
		return false, http.ErrHijacked
	}
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if n == 0 {
		return false, nil
	}
	if !bodyAllowed(rec.status) {
		return false, http.ErrBodyNotAllowed
	}
	// These refusals are in the order in which net/http has them: a handler may act on each.
	before := rec.written
	rec.written += int64(n)
	if rec.declared >= 0 && rec.written > rec.declared && rec.knowsLength(before) {
		return false, http.ErrContentLength
	}
	if !rec.dropped && n > rec.limit-len(rec.body) {
		rec.dropped = true
		rec.stream()
	}
	return !rec.dropped, nil
}

// knowsLength tells whether net/http holds the handler to the Content-Length that it declared, when so many
// bytes were written. HTTP/2 reads the length when it sends the header, and takes zero for none.
func (rec *recorder) knowsLength(written int64) bool {
	return rec.http1 || (rec.declared > 0 && (rec.streaming || written > http2Buffer))
}

// http2Buffer is how many bytes of a body net/http's HTTP/2 server collects before it sends the header.
const http2Buffer = 4096

// stream sends what there is, and from then on everything at once.
func (rec *recorder) stream() {
	if !rec.streaming {
		rec.streaming = true
		rec.sniffed = len(rec.body)
		rec.changed = !stillThere(rec.w.Header(), rec.head)
		rec.send()
	}
	if rec.dropped {
		rec.body = nil // it was sent and can't be recorded, so that it is only in the way
	}
}

// send sends the header as it stood at WriteHeader and the body so far, and leaves the map as the
// handler left it: trailers are in it.
func (rec *recorder) send() {
	h := rec.w.Header()
	var late []field
	if rec.changed {
		late = snapshot(nil, h)
		restore(h, rec.head)
	}
	rec.w.WriteHeader(rec.status)
	if len(rec.body) > 0 {
		// An error means that the client is gone. It finds the answer recorded when it comes back.
		_, _ = rec.w.Write(rec.body)
	}
	if rec.changed {
		restore(h, late)
	}
}

// deliver sends the answer, unless that has happened.
func (rec *recorder) deliver() {
	if !rec.streaming && !rec.hijacked {
		rec.send()
	}
}

// finish ends what the handler has left open.
func (rec *recorder) finish() {
	if rec.status == 0 && !rec.hijacked {
		rec.WriteHeader(http.StatusOK)
	}
	if !rec.streaming {
		rec.sniffed = len(rec.body)
	}
	rec.changed = !rec.hijacked && !stillThere(rec.w.Header(), rec.head)
}

// Flush is FlushError without a result.
func (rec *recorder) Flush() { _ = rec.FlushError() }

// FlushError sends what there is and turns to streaming. Its error is [http.ErrNotSupported] or nil.
func (rec *recorder) FlushError() error {
	if rec.hijacked {
		return http.ErrHijacked
	}
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	rec.stream()
	// Any other error means that the client is gone, about which a handler that has to end need not know
	// (TestClientThatIsGoneDoesNotStopTheHandler).
	if err := rec.controller().Flush(); errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Hijack hands the connection over to the handler. Nothing of what is written to it is kept.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if rec.status != 0 && !rec.hijacked && rec.http1 {
		rec.stream() // net/http sends what was written before, too
	}
	conn, rw, err := rec.controller().Hijack()
	if err == nil {
		rec.hijacked, rec.dropped = true, true
	}
	return conn, rw, err
}

// SetReadDeadline, SetWriteDeadline and EnableFullDuplex are what a ResponseController looks for.
func (rec *recorder) SetReadDeadline(t time.Time) error { return rec.controller().SetReadDeadline(t) }

// SetWriteDeadline bounds what is sent while the handler runs, and after it.
func (rec *recorder) SetWriteDeadline(t time.Time) error { return rec.controller().SetWriteDeadline(t) }

// EnableFullDuplex is passed on. The body of the request was read before the handler began.
func (rec *recorder) EnableFullDuplex() error { return rec.controller().EnableFullDuplex() }

func (rec *recorder) controller() *http.ResponseController {
	return http.NewResponseController(rec.w)
}

// bodyAllowed tells whether net/http lets a response with the status have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
