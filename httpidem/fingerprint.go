package httpidem

import (
	"net/http"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// FingerprintJSON is for Config.Fingerprint where clients write the same JSON in different ways. It is
// [idem.FingerprintOf] of method, path, raw query and the canonical form of the body: no spaces, members
// sorted by name, strings with as few escapes as possible. Numbers are compared as they are written (1.0
// is not 1), and strings by their code points, so that nothing that a handler can tell apart is taken
// for the same. An empty body is equal to an empty body only.
//
// A body that is not one JSON text, or that can be read in more than one way, is refused with a
// [*Problem] 400 [CodeRequestInvalid]: duplicate names, invalid UTF-8, half surrogate pairs, and nesting
// deeper than 64.
func FingerprintJSON(r *http.Request, body []byte) (idem.Fingerprint, error) {
	canonical, err := httpwire.CanonicalJSON(body)
	if err != nil {
		return idem.Fingerprint{}, &Problem{Status: http.StatusBadRequest, Code: CodeRequestInvalid, Detail: err.Error()}
	}
	return idem.FingerprintOf([]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), canonical), nil
}
