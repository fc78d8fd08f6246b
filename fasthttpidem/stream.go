package fasthttpidem

import (
	"context"
	"errors"
	"io"
	"reflect"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
)

// errPanicked is how a stream ends whose source panics.
var errPanicked = errors.New("fasthttpidem: the stream of the response panicked")

// isEndless tells whether the response is a stream that does not say how long it is: events, what a function writes.
func (x *run) isEndless() bool {
	if !x.resp.IsBodyStream() || isBodyless(x.resp.StatusCode()) {
		return false
	}
	if limited, ok := x.resp.BodyStream().(*io.LimitedReader); ok && x.resp.Header.ContentLength() < 0 {
		x.resp.Header.SetContentLength(int(limited.N)) // as the server would find out
	}
	return x.resp.Header.ContentLength() < 0
}

// A stream is the body of a response that its handler, or a function that it left behind, still makes while the server
// sends it. It goes to the client as it comes, and is recorded when it ends, before the client hears of the end. The
// client that leaves does not end it: half an operation is worse than an answer that nobody reads.
type stream struct {
	run  *run
	sent *fasthttp.Response // that the server sends; the run's is as the handler has left it
	src  io.Reader

	reading sync.Mutex // a middleware outside that compresses reads in one goroutine and closes in another
	body    []byte     // what was read so far
	dropped bool       // it was too much
	ended   error      // by which it did

	finishing, closing sync.Once
	err                error // why it could not be recorded
}

// stream puts itself in the place of the response's stream.
func (x *run) stream() {
	x.streams = true
	s := &stream{run: x, sent: x.resp}
	x.resp = moved(s.sent)
	s.src = x.resp.BodyStream()
	s.sent.SetBodyStream(s, -1)
	context.AfterFunc(x.tenure.Context(), s.cut)
}

// moved returns the response, and leaves one in its place that has the same header and nothing else. To take its
// stream from a response in another way is to close it.
func moved(resp *fasthttp.Response) *fasthttp.Response {
	was := new(fasthttp.Response)
	place := reflect.ValueOf(resp).Elem()
	reflect.ValueOf(was).Elem().Set(place) // which makes it the only one, by the next line
	place.SetZero()
	was.Header.CopyTo(&resp.Header)
	resp.SkipBody, resp.ImmediateHeaderFlush = was.SkipBody, was.ImmediateHeaderFlush
	return was
}

// Read implements [io.Reader].
func (s *stream) Read(p []byte) (n int, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.ended != nil {
		return 0, s.ended
	}
	s.ended = errPanicked
	defer func() {
		if errors.Is(s.ended, errPanicked) { // about which the server knows what to do
			s.finish(s.truncated)
		}
	}()
	n, err = s.src.Read(p)
	s.keep(p[:n])
	s.ended = err
	if err != nil {
		s.end()
	}
	return n, s.ended
}

// end records a response that has come to its end, before anybody hears of that.
func (s *stream) end() {
	x := s.run
	if ctx := x.tenure.Context(); ctx.Err() != nil {
		x.op.Hold() // perhaps it ends because it was cut
		s.ended = context.Cause(ctx)
	}
	if errors.Is(s.ended, io.EOF) && !s.dropped {
		s.finish(s.whole)
	} else {
		s.finish(s.truncated)
	}
	if s.err != nil {
		s.ended = s.err // much of it is sent: all that is left is to let it end in an error
	}
}

// whole returns the record of a stream that was kept. Trailers may have been set until now.
func (s *stream) whole() idem.Response {
	if len(s.run.resp.Header.PeekTrailerKeys()) > 0 {
		setTrailers(&s.run.resp.Header, string(s.sent.Header.TrailerHeader()))
	}
	return s.run.response(s.body)
}

func (s *stream) truncated() idem.Response {
	return idem.Response{Status: s.run.resp.StatusCode(), Truncated: true}
}

func (s *stream) keep(p []byte) {
	if s.dropped {
		return
	}
	if len(p) > s.run.conf.MaxResponseBytes-len(s.body) {
		s.body, s.dropped = nil, true
		return
	}
	s.body = append(s.body, p...)
}

// finish ends the tenure with a record, unless that has happened.
func (s *stream) finish(record func() idem.Response) {
	s.finishing.Do(func() {
		x := s.run
		defer x.tenure.End()
		if s.err = x.conclude(x.resp.StatusCode(), record); s.err != nil {
			x.tell(s.err)
		}
	})
}

// cut ends a stream with the operation's context: its time is over, or its claim is lost. Nobody knows how far the
// operation has come, and it may be that nobody reads the stream any more.
func (s *stream) cut() {
	s.run.op.Hold()
	s.close()
	s.finish(s.truncated)
}

// Close implements [io.Closer]. A stream that was not read to its end goes on to it.
func (s *stream) Close() error {
	_, _ = io.Copy(io.Discard, s)
	s.close()
	return nil
}

// close closes what the handler gave.
func (s *stream) close() {
	s.closing.Do(func() {
		if closer, ok := s.src.(io.Closer); ok {
			_ = closer.Close() // it was read, or nobody wants it
		}
	})
}
