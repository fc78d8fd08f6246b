package httpidem

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// replayedHeader marks an answer that was recorded before.
const replayedHeader = "Idempotency-Replayed"

// DefaultKeepHeader is what is recorded of a response's header unless Config.KeepHeader decides: every
// field but those that belong to one exchange or one client rather than to the result. Left out are Date
// and Age, Set-Cookie and WWW-Authenticate, Proxy-*, the ids of requests and traces, and the marker of a
// replay.
func DefaultKeepHeader(name string) bool {
	switch name {
	case "Date", "Age", // of the message, not of the result
		"Set-Cookie", "Set-Cookie2", "Www-Authenticate", "Authentication-Info", // secrets of one client
		"X-Request-Id", "Request-Id", "X-Correlation-Id", "Correlation-Id",
		"X-Trace-Id", "Traceparent", "Tracestate", "Traceresponse", "B3", "X-Amzn-Trace-Id", "X-Amzn-Requestid",
		"X-Cloud-Trace-Context", "Uber-Trace-Id", "Cf-Ray",
		replayedHeader:
		return false
	}
	return !strings.HasPrefix(name, "Proxy-") && !strings.HasPrefix(name, "X-B3-")
}

// A field is one entry of a header map as it stood at some moment. It has no part in the map's memory,
// in which handlers may change values in place.
type field struct {
	name   string
	value  string   // the first
	others []string // the ones after it
	none   bool     // there is not even a first: net/http must not add its own (Content-Type, Date)
}

// snapshot appends the entries of h to fields.
func snapshot(fields []field, h http.Header) []field {
	for name, values := range h {
		fields = append(fields, newField(name, values))
	}
	return fields
}

func newField(name string, values []string) field {
	if len(values) == 0 {
		return field{name: name, none: true}
	}
	return field{name: name, value: values[0], others: slices.Clone(values[1:])}
}

func (f *field) equal(values []string) bool {
	if f.none || len(values) == 0 {
		return f.none && len(values) == 0
	}
	return f.value == values[0] && slices.Equal(f.others, values[1:])
}

func (f *field) values() []string {
	if f.none {
		return nil
	}
	return append([]string{f.value}, f.others...)
}

// find returns the field of the name, or nil.
func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// get returns the first value of a field, and whether the name is there at all.
func get(fields []field, name string) (value string, ok bool) {
	if f := find(fields, name); f != nil {
		return f.value, true
	}
	return "", false
}

// stillThere tells whether h is as it was when fields was taken.
func stillThere(h http.Header, fields []field) bool {
	if len(h) != len(fields) {
		return false
	}
	for i := range fields {
		values, ok := h[fields[i].name]
		if !ok || !fields[i].equal(values) {
			return false
		}
	}
	return true
}

// restore makes h what it was when fields was taken.
func restore(h http.Header, fields []field) {
	clear(h)
	for i := range fields {
		h[fields[i].name] = fields[i].values()
	}
}

func (f *field) appendTo(dst []byte) []byte {
	if f.none {
		return dst
	}
	dst = httpwire.AppendLine(dst, f.name, f.value)
	for _, v := range f.others {
		dst = httpwire.AppendLine(dst, f.name, v)
	}
	return dst
}

// removals returns the lines of block that take fields away.
func removals(block []byte) (lines []byte) {
	for line := range bytes.Lines(block) {
		if !bytes.Contains(line, []byte(": ")) {
			lines = append(lines, line...)
		}
	}
	return lines
}

// setFields sets in h the fields that block begins with, up to an empty line or its end, and returns
// what follows. Their values are kept in room, one slice for all of them, which is returned as well: a
// replay should not cost an allocation for each field.
func setFields(h http.Header, block string, room []string) (rest string, used []string) {
	last, first := "", 0 // the name of the line before, and where in room its values begin
	for block != "" {
		line, after, _ := strings.Cut(block, "\r\n")
		block = after
		if line == "" {
			break
		}
		name, value, ok := httpwire.CutLine(line)
		if !ok {
			delete(h, line) // which does nothing if it is no name, and this no record of this package
			continue
		}
		if name != last {
			last, first = name, len(room)
		}
		room = append(room, value)
		h[name] = room[first:len(room):len(room)] // with no capacity into the next field's
	}
	return block, room
}
