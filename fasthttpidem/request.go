package fasthttpidem

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// responseRoom is how much room there is for a response that is replayed, in bytes.
const responseRoom = 1 << 10

// An intake is what is known of a request before its handler runs.
type intake struct {
	*scratch
	values  context.Context //nolint:containedctx // the frame of one request
	lines   []string        // of the key
	request idem.Request    // its Buf is the room for a replay
	outcome idem.Outcome    // what the store says to request
}

// fieldLines appends the values of a field. The server may have left the names of fields as they were sent.
func fieldLines(lines []string, h *fasthttp.RequestHeader, name string) []string {
	for other, value := range h.All() {
		if len(other) == len(name) && strings.EqualFold(string(other), name) {
			lines = append(lines, string(value))
		}
	}
	return lines
}

// read fills in, or returns how the request is to be refused.
func (g *guard) read(in *intake, ctx *fasthttp.RequestCtx) *httpidem.Problem {
	if len(in.lines) == 0 {
		p := httpidem.NewProblem(httpidem.CodeKeyMissing)
		p.Detail = "The request needs the header field " + g.conf.Header + "."
		return p
	}
	key, ok := httpwire.ParseKey(in.lines)
	if !ok {
		return httpidem.NewProblem(httpidem.CodeKeyInvalid) // the key itself is not repeated: it may be hostile, or a secret
	}
	scope, err := g.conf.Scope(ctx)
	if err != nil {
		return httpidem.ProblemOf(err, httpidem.CodeScopeUnknown)
	}
	in.request = idem.Request{Scope: scope, Key: key}
	in.request.Fingerprint, err = g.fingerprint(in, ctx)
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p := httpidem.NewProblem(httpidem.CodeRequestTooLarge)
		p.Detail = httpwire.TooLarge(int64(g.conf.MaxRequestBytes))
		return p
	case errors.Is(err, errConsumed):
		// For whoever built the server to mend; the client can do nothing.
		g.conf.Logger.ErrorContext(in.values, "fasthttpidem: request refused: its body was read before the middleware could", "path", string(ctx.Path()))
		return httpidem.ProblemOf(err, httpidem.CodeRequestInvalid)
	case err != nil:
		return httpidem.ProblemOf(err, httpidem.CodeRequestInvalid)
	}
	in.request.Buf = in.buf[:0]
	return nil
}

// fingerprint returns the digest of the request, whose body is all there afterwards.
func (g *guard) fingerprint(in *intake, ctx *fasthttp.RequestCtx) (idem.Fingerprint, error) {
	body, form, err := g.body(ctx)
	switch {
	case err != nil:
		return idem.Fingerprint{}, err
	case g.conf.Fingerprint != nil:
		in.buf = slices.Grow(in.buf[:0], responseRoom)
		return g.conf.Fingerprint(ctx, body)
	}
	uri := ctx.URI()
	method, path, query := ctx.Method(), escapedPath(uri), uri.QueryString()
	in.buf = slices.Grow(in.buf[:0], max(responseRoom, 64+len(path)+len(query)+len(body)))
	buf := httpwire.AppendPrefix(in.buf, method, path, query)
	start := len(buf)
	if form != nil {
		if buf, err = appendForm(buf, form); err != nil {
			return idem.Fingerprint{}, err
		}
	} else {
		buf = append(buf, body...)
	}
	in.buf = buf
	return httpwire.SealFingerprint(buf, start), nil
}

// errConsumed is how a request is refused whose body somebody has read before.
var errConsumed = &httpidem.Problem{
	Status: fasthttp.StatusBadRequest, Code: httpidem.CodeRequestInvalid, Title: "Request invalid", Detail: httpwire.ReadTooEarly,
}

// escapedPath returns the path of a request as net/http has it: as it was sent, except for bytes that should not have been
// sent as they are.
func escapedPath(uri *fasthttp.URI) []byte {
	path := uri.PathOriginal()
	if !bytes.ContainsFunc(path, isUnsafe) {
		return path
	}
	plain, err := url.PathUnescape(string(path))
	if err != nil {
		return path
	}
	return []byte((&url.URL{Path: plain, RawPath: string(path)}).EscapedPath())
}

// isUnsafe tells whether net/http escapes a byte in a path.
func isUnsafe(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r) }
