package httpwire

import (
	"crypto/sha256"
	"encoding/base64"
)

// ScopeOf returns the scope of whom the value of a header field stands for: a hash, so that the store does not get to know
// credentials.
func ScopeOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	var text [43]byte // 32 bytes in base64
	base64.RawURLEncoding.Encode(text[:], sum[:])
	return string(text[:])
}
