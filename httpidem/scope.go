package httpidem

import (
	"net/http"

	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// ScopeHeader returns a function for Config.Scope that lets a key belong to the value of a header field:
// an API key, or the credentials in Authorization. The scope is a hash of the value, so that the store
// does not get to know credentials. A request that has not exactly one such field is answered 401.
//
// A client whose credentials change between two attempts is another principal then, and its request runs
// again. Where tokens are renewed often, take the name of the principal from the authentication instead.
func ScopeHeader(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		lines := r.Header[name]
		if len(lines) != 1 || lines[0] == "" {
			p := NewProblem(CodeScopeUnknown)
			p.Detail = "The request needs one header field " + name + "."
			return "", p
		}
		return httpwire.ScopeOf(lines[0]), nil
	}
}

// SharedScope is for Config.Scope in a service whose callers are all the same principal. Anybody else
// who sends the key of another caller's request, with the same content, is given that caller's response.
func SharedScope(*http.Request) (string, error) { return "", nil }
