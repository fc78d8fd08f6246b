package fasthttpidem

import (
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// ScopeHeader returns a function for Config.Scope that lets a key belong to the value of a header field:
// an API key, or the credentials in Authorization. The scope is a hash of the value, so that the store
// does not get to know credentials. A request that has not exactly one such field is answered 401.
//
// A client whose credentials change between two attempts is another principal then, and its request runs
// again. Where tokens are renewed often, take the name of the principal from the authentication instead.
func ScopeHeader(name string) func(*fasthttp.RequestCtx) (string, error) {
	return func(ctx *fasthttp.RequestCtx) (string, error) {
		var room [1]string
		lines := fieldLines(room[:0], &ctx.Request.Header, name)
		if len(lines) != 1 || lines[0] == "" {
			p := httpidem.NewProblem(httpidem.CodeScopeUnknown)
			p.Detail = "The request needs one header field " + name + "."
			return "", p
		}
		return httpwire.ScopeOf(lines[0]), nil
	}
}

// SharedScope is for Config.Scope in a service whose callers are all the same principal. Anybody else
// who sends the key of another caller's request, with the same content, is given that caller's response.
func SharedScope(*fasthttp.RequestCtx) (string, error) { return "", nil }

var errForm = errors.New("the body is a form, and not a JSON text")

// FingerprintJSON is for Config.Fingerprint where clients write the same JSON in different ways. It is what
// [httpidem.FingerprintJSON] is, and refuses what that does.
func FingerprintJSON(ctx *fasthttp.RequestCtx, body []byte) (idem.Fingerprint, error) {
	canonical, err := httpwire.CanonicalJSON(body)
	if body == nil && len(ctx.Request.Header.MultipartFormBoundary()) > 0 {
		err = errForm
	}
	if err != nil {
		return idem.Fingerprint{}, &httpidem.Problem{
			Status: fasthttp.StatusBadRequest, Code: httpidem.CodeRequestInvalid, Detail: err.Error(),
		}
	}
	uri := ctx.URI()
	return idem.FingerprintOf(ctx.Method(), escapedPath(uri), uri.QueryString(), canonical), nil
}
