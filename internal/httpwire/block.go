package httpwire

import (
	"net/http"
	"strings"
)

// The header of a recorded response is kept in the format of HTTP/1: a line for each value of each
// field. Trailers, if there are any, follow after an empty line. The name of a trailer that was not
// declared begins with http.TrailerPrefix, which no name of a field can: so the record is just what the
// header map held when the header was sent, and what it held at the end. A line that is a name and nothing
// else takes away what is in the map under it: what a middleware around this one has set and the handler
// has removed, or a trailer that was gone at the end.

// AppendLine appends the line of one value of a field.
func AppendLine[T string | []byte](dst []byte, name, value T) []byte {
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

// AppendRemoval appends the line that takes a field away.
func AppendRemoval(dst []byte, name string) []byte {
	return append(append(dst, name...), "\r\n"...)
}

// CutLine cuts a line at its first colon, or at its second if the name has the prefix of a trailer.
func CutLine(line string) (name, value string, ok bool) {
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
