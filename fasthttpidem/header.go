package fasthttpidem

import (
	"bytes"
	"iter"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// A header is that of a response as it stood at some moment, without what the server makes of the body.
type header struct {
	lines  []byte // as in a record
	noType bool   // the server does not add a Content-Type
}

// headerOf returns the header of a response. Its lines are made in room.
func headerOf(now *fasthttp.ResponseHeader, room []byte) (h header) {
	h.lines = room[:0]
	kind := typeOf(now)
	h.noType = len(now.ContentType()) == 0
	if kind != nil {
		now.SetContentTypeBytes(kind)
		h.lines = httpwire.AppendLine(h.lines, []byte(fasthttp.HeaderContentType), kind)
	}
	for name, value := range now.All() {
		switch string(name) {
		case fasthttp.HeaderContentType, fasthttp.HeaderContentLength:
		default:
			h.lines = httpwire.AppendLine(h.lines, name, value)
		}
	}
	return h
}

// typeOf takes the Content-Type that was set, and returns it. To be told from the default one it has to be taken away; one
// that is the same in letters counts, because it is sent without a body, too.
func typeOf(now *fasthttp.ResponseHeader) []byte {
	kind := now.ContentType()
	now.Del(fasthttp.HeaderContentType)
	if left := now.ContentType(); len(kind) == 0 || len(left) > 0 && &kind[0] == &left[0] {
		return nil
	}
	return kind
}

// withDefaultType returns the header with the type that the server adds to a body without one.
func (h header) withDefaultType(now *fasthttp.ResponseHeader) header {
	name := []byte(fasthttp.HeaderContentType)
	if kind := now.ContentType(); !h.has(name) && len(kind) > 0 {
		h.lines = httpwire.AppendLine(h.lines, name, kind)
	}
	return h
}

// restore sets the fields in a header that is empty.
func (h header) restore(now *fasthttp.ResponseHeader) {
	for name, value := range h.all() {
		now.AddBytesKV(name, value)
	}
	now.SetNoDefaultContentType(h.noType)
}

// all returns names and values, a pair for each value. They are part of the header.
func (h header) all() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		for line := range bytes.Lines(h.lines) {
			name, value, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\r\n")), []byte(": "))
			if ok && len(name) > 0 && !yield(name, value) {
				return
			}
		}
	}
}

// names returns the names, each once.
func (h header) names() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for name := range h.all() {
			if &h.first(name)[0] == &name[0] && !yield(name) {
				return
			}
		}
	}
}

// first returns the name as it is in the first of its lines, or nil if there is none.
func (h header) first(name []byte) []byte {
	for n := range h.all() {
		if bytes.Equal(n, name) {
			return n
		}
	}
	return nil
}

// has tells whether there is such a field.
func (h header) has(name []byte) bool { return h.first(name) != nil }

// isSame tells whether both headers have the field with the same values.
func (h header) isSame(other header, name []byte) bool {
	if !other.has(name) {
		return false // mostly because there is nothing in it
	}
	return slices.EqualFunc(slices.Collect(h.values(name)), slices.Collect(other.values(name)), bytes.Equal)
}

func (h header) values(name []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for n, value := range h.all() {
			if bytes.Equal(n, name) && !yield(value) {
				return
			}
		}
	}
}
