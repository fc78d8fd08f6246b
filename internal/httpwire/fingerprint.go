package httpwire

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/seed-5bb5eb37/idem"
)

// The fingerprint of a request is [idem.FingerprintOf] of method, path, raw query and body by default. Its parts are laid
// out in one buffer, so that nothing has to be copied or allocated for it: AppendPrefix comes before the body, and
// SealFingerprint is called when the body is there.

// AppendPrefix appends what goes before the body. The path is as it was sent, percent-encoded.
func AppendPrefix[T string | []byte](buf []byte, method, path, query T) []byte {
	buf = appendPart(buf, method)
	buf = appendPart(buf, path)
	buf = appendPart(buf, query)
	return appendPart(buf, "") // the length of the body, not known yet
}

func appendPart[T string | []byte](buf []byte, part T) []byte {
	return append(binary.LittleEndian.AppendUint64(buf, uint64(len(part))), part...)
}

// SealFingerprint returns the fingerprint of a buffer whose body begins at start.
func SealFingerprint(buf []byte, start int) idem.Fingerprint {
	binary.LittleEndian.PutUint64(buf[start-8:], uint64(len(buf)-start))
	sum := sha256.Sum256(buf)
	return idem.Fingerprint(sum[:len(idem.Fingerprint{})])
}
