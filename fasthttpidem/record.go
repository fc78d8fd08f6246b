package fasthttpidem

import (
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// This file turns what a handler answered into the record of it, in the form that package httpidem has.

// NewResponse returns the record of a response, as the middleware would make it without KeepHeader and
// Redact. It is for a handler that completes its claim itself, in the transaction of its database for
// instance, and then answers with the same response, by CopyTo.
//
// The response must have the handler's own fields and nothing else: that of the RequestCtx also has what
// middlewares around this one have set for this one request (CORS), and a replay would have it again for every other.
func NewResponse(resp *fasthttp.Response) idem.Response {
	return newRecord(resp, resp.Body(), new(scratch), header{}, httpidem.DefaultKeepHeader)
}

// response returns the record of the response with the body. It shares memory with the response and the scratch.
func (x *run) response(body []byte) idem.Response {
	resp := x.resp
	if x.conf.Redact != nil {
		other := new(fasthttp.Response)
		resp.CopyTo(other)
		other.SetBody(body)
		x.conf.Redact(other)
		other.SetStatusCode(resp.StatusCode()) // it is not for Redact to change
		resp, body = other, other.Body()
	}
	return newRecord(resp, body, x.scratch, x.entry, x.conf.KeepHeader)
}

// newRecord returns the record of a response. entry is what its header had before the handler: what a middleware around
// this one has set, and the handler left alone, is not the result's. That middleware sets it on a replay too, and
// has perhaps another request to look at then.
func newRecord(resp *fasthttp.Response, body []byte, s *scratch, entry header, keep func(string) bool) idem.Response {
	h, status := &resp.Header, resp.StatusCode()
	trailers := appendTrailers(nil, h, keep)
	now := headerOf(h, s.lines)
	if isBodyless(status) {
		body = nil // which the server does not send either
	} else if len(body) > 0 || resp.IsBodyStream() || (len(h.PeekTrailerKeys()) > 0 && h.IsHTTP11()) {
		now = now.withDefaultType(h)
	}
	head := appendHeader(s.buf[:0], now, entry, string(h.Peek(fasthttp.HeaderConnection)), keep)
	s.lines = now.lines
	if len(trailers) > 0 {
		head = append(append(head, "\r\n"...), trailers...)
	}
	return idem.Response{Status: status, Header: head, Body: body}
}

// appendHeader appends the lines of what has changed between entry and now.
func appendHeader(dst []byte, now, entry header, connection string, keep func(string) bool) []byte {
	for name := range entry.names() {
		if !now.has(name) && httpwire.IsRecordable(string(name), connection, keep) {
			dst = httpwire.AppendRemoval(dst, string(name))
		}
	}
	for name := range now.names() {
		if now.isSame(entry, name) || !httpwire.IsRecordable(string(name), connection, keep) {
			continue
		}
		for value := range now.values(name) {
			dst = httpwire.AppendLine(dst, name, value)
		}
	}
	return dst
}

// appendTrailers appends the lines of the trailers, as they are by now.
func appendTrailers(dst []byte, h *fasthttp.ResponseHeader, keep func(string) bool) []byte {
	if len(h.PeekTrailerKeys()) == 0 {
		return dst
	}
	trailers := header{lines: h.TrailerHeader()}
	return appendHeader(dst, trailers, header{}, "", keep)
}

// isBodyless tells whether the server sends no body with the status, whatever there is.
func isBodyless(status int) bool {
	return status < 200 || status == fasthttp.StatusNoContent || status == fasthttp.StatusNotModified
}
