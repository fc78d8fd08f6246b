package httpidem

import (
	"net/http"
	"slices"
	"strings"

	"github.com/seed-5bb5eb37/idem"
)

// This file turns what a handler answered into the record of it, and the record into a replay.

// NewResponse returns the record of a response, as the middleware would make it without KeepHeader and
// Redact. It is for a handler that completes its claim itself, in the transaction of its database for
// instance, and then writes the same response. The body is not copied.
func NewResponse(status int, header http.Header, body []byte) idem.Response {
	rec := recorder{w: mapWriter(header), body: body, declared: -1}
	rec.WriteHeader(status)
	rec.finish()
	return rec.response(DefaultKeepHeader, nil)
}

// mapWriter is a response writer that has a header and nothing else.
type mapWriter http.Header

func (m mapWriter) Header() http.Header       { return http.Header(m) }
func (m mapWriter) Write([]byte) (int, error) { return 0, http.ErrBodyNotAllowed }
func (m mapWriter) WriteHeader(int)           {}

// held is the record of an operation whose outcome is not known, see [Hold]. It is a response, and not
// a claim left to run out, because a store that lets claims be taken over would run it again then.
func held(status int) idem.Response {
	return idem.Response{Status: status, Failed: true, Truncated: true}
}

func isHeld(resp *idem.Response) bool { return resp.Failed && resp.Truncated }

// isReplayable tells whether a recorded response can be sent. A status that is not final is that of a
// connection that was handed over, or no HTTP status at all.
func isReplayable(resp *idem.Response) bool {
	return !resp.Truncated && resp.Status >= 200 && resp.Status <= 999
}

// response returns the record. It may be used once, and shares the memory of body.
func (rec *recorder) response(keep func(string) bool, redact func(int, http.Header, []byte) []byte) idem.Response {
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
	head := buf[len(body):]
	if redact != nil {
		head, body = redacted(rec.status, head, body, redact)
	}
	return idem.Response{Status: rec.status, Header: rec.appendTrailers(head, keep), Body: body}
}

// appendHeader appends the fields to record: those that the handler set. What a middleware around this
// one set, and the handler left alone, is not the result's: that middleware sets it on a replay too,
// and has perhaps another request to look at then (CORS).
func (rec *recorder) appendHeader(dst []byte, keep func(string) bool) []byte {
	connection, _ := get(rec.head, "Connection")
	for i := range rec.head {
		f := &rec.head[i]
		if f.name == "Content-Length" && rec.status == http.StatusResetContent {
			continue // of the body that was left out
		}
		if isRecordable(f.name, connection, keep) && !isIn(rec.entry, f) {
			dst = f.appendTo(dst)
		}
	}
	if sniffed := rec.sniffedType(); sniffed != "" && keep("Content-Type") {
		dst = appendLine(dst, "Content-Type", sniffed)
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

// appendTrailers appends the block of trailers, if there is any. A header that was not changed holds them
// already.
func (rec *recorder) appendTrailers(dst []byte, keep func(string) bool) []byte {
	if !rec.changed {
		return dst
	}
	var block []byte
	// Values of trailers count as they stand at the end, and those of a name that was announced may have
	// been in the header with another value.
	for name, values := range rec.w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) || rec.declares(name) {
			if isRecordable(name, "", keep) {
				f := newField(name, values)
				block = f.appendTo(block)
			}
		}
	}
	if block == nil {
		return dst
	}
	return slices.Concat(dst, []byte("\r\n"), block)
}

// declares tells whether the header announced the trailer.
func (rec *recorder) declares(name string) bool {
	for i := range rec.head {
		if f := &rec.head[i]; f.name == "Trailer" {
			return slices.ContainsFunc(f.values(), func(list string) bool { return hasListed(list, name) })
		}
	}
	return false
}

// redacted lets the user's function change header and body, both copies.
func redacted(status int, head, body []byte, redact func(int, http.Header, []byte) []byte) (newHead, newBody []byte) {
	header := make(http.Header)
	setFields(header, string(head), nil)
	newBody = redact(status, header, slices.Clone(body))
	if len(newBody) != len(body) {
		header.Del("Content-Length") // net/http finds the right one on a replay
	}
	for _, f := range snapshot(nil, header) {
		newHead = f.appendTo(newHead)
	}
	return newHead, newBody
}

// replay sends a recorded response. The fields of w that are set already and not recorded stay.
func replay(w http.ResponseWriter, resp *idem.Response) {
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
	setFields(h, trailers, nil)
}
