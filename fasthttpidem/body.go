package fasthttpidem

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"

	"github.com/valyala/fasthttp"
)

// body returns the body of the request, or the form that the server has made of it. It is there for the handler as it
// would be without the middleware.
func (g *guard) body(ctx *fasthttp.RequestCtx) (body []byte, form *multipart.Form, err error) {
	req, limit := &ctx.Request, g.conf.MaxRequestBytes
	length := req.Header.ContentLength()
	if length > limit {
		return nil, nil, fasthttp.ErrBodyTooLarge
	}
	if req.IsBodyStream() {
		body, err = readStream(req, limit)
		return body, nil, err
	}
	if length < 0 && len(req.Body()) > limit { // in chunks, of which no form was made yet
		return nil, nil, fasthttp.ErrBodyTooLarge
	}
	if form, err = parsedForm(req, limit); form != nil || err != nil {
		return nil, form, err
	}
	if body = req.Body(); len(body) < length {
		return nil, nil, errConsumed
	}
	return body, nil, nil
}

// readStream reads a body that the server leaves to the handler, and puts it back. Of one that was sent in part, or that
// somebody has read from, it says so.
func readStream(req *fasthttp.Request, limit int) ([]byte, error) {
	length := req.Header.ContentLength()
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(req.BodyStream(), int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case n > int64(limit):
		return nil, fasthttp.ErrBodyTooLarge
	case length >= 0 && n < int64(length):
		return nil, errConsumed
	}
	body := buf.Bytes()
	req.SetBodyStream(bytes.NewReader(body), length)
	return body, nil
}

// parsedForm returns the form of a request that is one, in parts, or nil. The server may have parsed it already, in which
// case there is no body any more. Of one that can't be parsed the bytes are there, which tell requests apart as well. A
// form that is compressed may be larger than it looks.
func parsedForm(req *fasthttp.Request, limit int) (*multipart.Form, error) {
	if len(req.Header.MultipartFormBoundary()) == 0 {
		return nil, nil //nolint:nilnil // it is none
	}
	form, err := req.MultipartFormWithLimit(limit)
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return nil, err
	case err != nil:
		return nil, nil //nolint:nilnil,nilerr // it is none that can be read
	}
	return form, nil
}
