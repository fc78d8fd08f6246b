package httpidem

import (
	"net/http"
	"slices"
	"strings"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// This file turns what a handler answered into the record of it, and the record into a replay.

// NewResponse returns the record of a response, as the middleware would make it without KeepHeader and
// Redact. It is for a handler that completes its claim itself, in the transaction of its database for
// instance, and then writes the same response. The body is not copied.
//
// header must hold the handler's own fields and nothing else. The map of its [http.ResponseWriter] also has
// what middlewares around this one have set for this one request (CORS), and a replay would have it again
// for every other: make a header of its own, and copy that into the writer's.
func NewResponse(status int, header http.Header, body []byte) idem.Response {
	if !bodyAllowed(status) {
		body = nil
	}
	rec := recorder{w: mapWriter(header), body: slices.Clip(body), declared: -1} // what is behind body is the caller's
	rec.WriteHeader(status)
	rec.finish()
	return rec.response(DefaultKeepHeader, nil)
}

// A redactor is a Config.Redact.
type redactor = func(status int, header http.Header, body []byte) []byte

// mapWriter is a response writer that has a header and nothing else.
type mapWriter http.Header

func (m mapWriter) Header() http.Header       { return http.Header(m) }
func (m mapWriter) Write([]byte) (int, error) { return 0, http.ErrBodyNotAllowed }
func (m mapWriter) WriteHeader(int)           {}

// response returns the record. It may be used once, and shares the memory of body.
func (rec *recorder) response(keep func(string) bool, redact redactor) idem.Response {
	if rec.hijacked {
		return idem.Response{Status: http.StatusSwitchingProtocols, Truncated: true}
	}
	if rec.dropped {
		return idem.Response{Status: rec.status, Truncated: true}
	}
	// From here on the response is complete, and known to be within the limit.
	body := rec.body
	if rec.status == http.StatusResetContent {
		body = nil // net/http lets a handler send one, but there must be none
	}
	// Header and body share one buffer, so that the common response costs no second one.
	buf := rec.appendHeader(body, keep)
	head, trailers := buf[len(body):], rec.trailers(keep)
	if redact != nil {
		head, trailers, body = redacted(rec.status, head, trailers, body, redact)
	}
	if len(trailers) > 0 {
		head = slices.Concat(head, []byte("\r\n"), trailers)
	}
	return idem.Response{Status: rec.status, Header: head, Body: body}
}

// appendHeader appends the fields to record: those that the handler set, and the bare names of those that
// it took away. What a middleware around this one set, and the handler left alone, is not the result's:
// that middleware sets it on a replay too, and has perhaps another request to look at then (CORS).
func (rec *recorder) appendHeader(dst []byte, keep func(string) bool) []byte {
	connection := ""
	if f := find(rec.head, "Connection"); f != nil {
		connection = strings.Join(f.values(), ",")
	}
	for i := range rec.entry {
		name := rec.entry[i].name
		if f := find(rec.head, name); (f == nil || f.none) && httpwire.IsRecordable(name, connection, keep) {
			dst = httpwire.AppendRemoval(dst, name)
		}
	}
	for i := range rec.head {
		f := &rec.head[i]
		if f.name == "Content-Length" && rec.status == http.StatusResetContent {
			continue // of the body that was left out
		}
		if httpwire.IsRecordable(f.name, connection, keep) && !isIn(rec.entry, f) {
			dst = f.appendTo(dst)
		}
	}
	if sniffed := rec.sniffedType(); sniffed != "" && keep("Content-Type") {
		dst = httpwire.AppendLine(dst, "Content-Type", sniffed)
	}
	return dst
}

// isIn tells whether fields has a field of the same name and values.
func isIn(fields []field, f *field) bool {
	return slices.ContainsFunc(fields, func(g field) bool {
		return g.name == f.name && g.none == f.none && g.value == f.value && slices.Equal(g.others, f.others)
	})
}

// sniffedType returns the Content-Type that net/http adds, or nothing if it adds none.
func (rec *recorder) sniffedType() string {
	_, typed := get(rec.head, "Content-Type")
	encoding, _ := get(rec.head, "Content-Encoding")
	transfer, _ := get(rec.head, "Transfer-Encoding")
	if typed || encoding != "" || (transfer != "" && rec.http1) || rec.sniffed == 0 {
		return ""
	}
	return http.DetectContentType(rec.body[:rec.sniffed])
}

// trailers returns the block of trailers. A header that was not changed holds them already.
func (rec *recorder) trailers(keep func(string) bool) (block []byte) {
	if !rec.changed {
		return nil
	}
	h := rec.w.Header()
	// Those that were not announced are sent with the rest, or else if the framing happens to allow it.
	unannounced := !rec.http1 || rec.streaming || rec.sniffed > http1Buffer || find(rec.head, "Trailer") != nil
	for i := range rec.head {
		name := rec.head[i].name
		early := strings.HasPrefix(name, http.TrailerPrefix)
		unannounced = unannounced || early
		if len(h[name]) == 0 && (early || rec.declares(name)) && httpwire.IsRecordable(name, "", keep) {
			block = httpwire.AppendRemoval(block, name) // a replay has set it with the header
		}
	}
	// Values of trailers count as they stand at the end, and those of a name that was announced may have
	// been in the header with another value.
	for name, values := range h {
		if (unannounced && strings.HasPrefix(name, http.TrailerPrefix)) || rec.declares(name) {
			if httpwire.IsRecordable(name, "", keep) {
				f := newField(name, values)
				block = f.appendTo(block)
			}
		}
	}
	return block
}

// http1Buffer is how many bytes of a body net/http's HTTP/1 server collects before it sends the header. A
// body that ends within is framed by its length, which leaves no place for trailers.
const http1Buffer = 2048

// declares tells whether the header announced the trailer.
func (rec *recorder) declares(name string) bool {
	f := find(rec.head, "Trailer")
	return f != nil && slices.ContainsFunc(f.values(), func(list string) bool { return httpwire.HasListed(list, name) })
}

// redacted lets the user's function change header, trailers and body, copies of all. It finds the trailers
// in the header, after the values of a field of the same name.
func redacted(status int, head, trailers, body []byte, redact redactor) (newHead, newTrailers, newBody []byte) {
	header, trailer := parsed(head, trailers)
	fields := make(map[string]int) // how many of the values under the name of a trailer are not the trailer's
	for name, values := range trailer {
		name = strings.TrimPrefix(name, http.TrailerPrefix)
		if _, twice := fields[name]; !twice {
			fields[name] = len(header[name])
		}
		header[name] = append(header[name], values...)
	}
	newBody = redact(status, header, slices.Clone(body))
	if len(newBody) != len(body) {
		header.Del("Content-Length") // net/http finds the right one on a replay
	}
	newHead, newTrailers = removals(head), removals(trailers) // first, so that redact may set one of them
	for name := range trailer {
		bare := strings.TrimPrefix(name, http.TrailerPrefix)
		values := header[bare]
		n := min(fields[bare], len(values))
		header[bare] = values[:n]
		f := newField(name, values[n:])
		newTrailers = f.appendTo(httpwire.AppendRemoval(newTrailers, name)) // what is left of the field is no trailer
	}
	for _, f := range snapshot(nil, header) {
		newHead = f.appendTo(newHead)
	}
	return newHead, newTrailers, newBody
}

// parsed returns the fields and the trailers of two blocks. Trailers that were set early, in the first, are
// as they stood at the end.
func parsed(head, trailers []byte) (header, trailer http.Header) {
	header, trailer = make(http.Header), make(http.Header)
	setFields(header, string(head), nil)
	for name, values := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			trailer[name] = values
			delete(header, name)
		}
	}
	setFields(trailer, string(trailers), nil)
	return header, trailer
}

// replay sends a recorded response. The fields of w that are set already and not recorded stay.
func replay(w http.ResponseWriter, r *http.Request, resp *idem.Response) {
	h := w.Header()
	// The values of all fields are parts of one string, and of one slice.
	block := string(resp.Header)
	room := make([]string, 0, strings.Count(block, "\n")+1)
	trailers, room := setFields(h, block, room)
	room = append(room, "true")
	h[replayedHeader] = room[len(room)-1:]
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // there was none, so net/http must not guess one now
	}
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body) // a client that left needs no answer
	}
	if r.ProtoMajor == 1 && strings.Contains(trailers, http.TrailerPrefix) {
		_ = http.NewResponseController(w).Flush() // a body that is framed by its length has no trailers
	}
	setFields(h, trailers, nil)
}
