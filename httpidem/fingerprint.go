package httpidem

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"

	"github.com/seed-5bb5eb37/idem"
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
	canonical, err := canonicalJSON(body)
	if err != nil {
		return idem.Fingerprint{}, &Problem{Status: http.StatusBadRequest, Code: CodeRequestInvalid, Detail: err.Error()}
	}
	return idem.FingerprintOf([]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), canonical), nil
}

// The fingerprint of a request is [idem.FingerprintOf] of method, path, raw query and body by default.
// Its parts are laid out in the buffer that the body is read into, so that nothing has to be copied or
// allocated for it: prefix comes before the body, sealFingerprint is called when the body is there.

// appendPrefix appends what goes before the body.
func appendPrefix(buf []byte, r *http.Request) []byte {
	buf = appendPart(buf, r.Method)
	buf = appendPart(buf, r.URL.EscapedPath())
	buf = appendPart(buf, r.URL.RawQuery)
	return appendPart(buf, "") // the length of the body, not known yet
}

func appendPart(buf []byte, part string) []byte {
	return append(binary.LittleEndian.AppendUint64(buf, uint64(len(part))), part...)
}

// sealFingerprint returns the fingerprint of a buffer whose body begins at start.
func sealFingerprint(buf []byte, start int) idem.Fingerprint {
	binary.LittleEndian.PutUint64(buf[start-8:], uint64(len(buf)-start))
	sum := sha256.Sum256(buf)
	return idem.Fingerprint(sum[:len(idem.Fingerprint{})])
}
