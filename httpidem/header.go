package httpidem

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
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

// isHopByHop tells whether a field says something about the connection that it was sent on.
// Such a field is never recorded, whatever KeepHeader says: it would be wrong on the next connection.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
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

// The header of a recorded response is kept in the format of HTTP/1: a line for each value of each
// field. Trailers, if there are any, follow after an empty line. The name of a trailer that was not
// declared begins with http.TrailerPrefix, which no name of a field can: so the record is just what the
// header map held when the header was sent, and what it held at the end. A line that is a name and nothing
// else takes away what is in the map under it: what a middleware around this one has set and the handler
// has removed, or a trailer that was gone at the end.

// isRecordable tells whether a field may be recorded and keep wants it. connection is the value of the
// field Connection, which may list others that are hop by hop.
func isRecordable(name, connection string, keep func(string) bool) bool {
	name, ok := canonicalName(strings.TrimPrefix(name, http.TrailerPrefix))
	return ok && !isHopByHop(name) && !hasListed(connection, name) && keep(name)
}

// canonicalName returns the canonical form of a field's name, and whether it is a name at all. Both takes
// one look at each byte, since nearly all names are canonical.
func canonicalName(name string) (canonical string, ok bool) {
	same, first := true, true // first: at the start of a word, where a capital belongs
	for i := range len(name) {
		c := name[i]
		if !isTokenChar(c) {
			return "", false
		}
		if isAlpha(c) && isLower(c) == first {
			same = false
		}
		first = c == '-'
	}
	if !same {
		name = http.CanonicalHeaderKey(name)
	}
	return name, name != ""
}

// hasListed tells whether a comma-separated list names the field.
func hasListed(list, name string) bool {
	if list == "" {
		return false
	}
	for element := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(element), name) {
			return true
		}
	}
	return false
}

func (f *field) appendTo(dst []byte) []byte {
	if f.none {
		return dst
	}
	dst = appendLine(dst, f.name, f.value)
	for _, v := range f.others {
		dst = appendLine(dst, f.name, v)
	}
	return dst
}

func appendLine(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	start := len(dst)
	dst = append(dst, value...)
	// A value with a line break would become a field of its own (FuzzReplay).
	for i := start; i < len(dst); i++ {
		if dst[i] == '\r' || dst[i] == '\n' {
			dst[i] = ' ' // as net/http does
		}
	}
	return append(dst, "\r\n"...)
}

// appendRemoval appends the line that takes a field away.
func appendRemoval(dst []byte, name string) []byte {
	return append(append(dst, name...), "\r\n"...)
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
		name, value, ok := cutLine(line)
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

// cutLine cuts a line at its first colon, or at its second if the name has the prefix of a trailer.
func cutLine(line string) (name, value string, ok bool) {
	trailer := ""
	if after, found := strings.CutPrefix(line, http.TrailerPrefix); found && !strings.HasPrefix(after, " ") {
		trailer, line = http.TrailerPrefix, after
	}
	name, value, ok = strings.Cut(line, ": ")
	if trailer != "" {
		name = trailer + name
	}
	return name, value, ok
}
