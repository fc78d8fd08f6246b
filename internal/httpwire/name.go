package httpwire

import (
	"net/http"
	"strings"
)

// IsRecordable tells whether a field may be recorded and keep wants it. connection is the value of the
// field Connection, which may list others that are hop by hop.
func IsRecordable(name, connection string, keep func(string) bool) bool {
	name, ok := CanonicalName(strings.TrimPrefix(name, http.TrailerPrefix))
	return ok && !isHopByHop(name) && !HasListed(connection, name) && keep(name)
}

// CanonicalName returns the canonical form of a field's name, and whether it is a name at all. Both takes
// one look at each byte, since nearly all names are canonical.
func CanonicalName(name string) (canonical string, ok bool) {
	same, first := true, true // first: at the start of a word, where a capital belongs
	for i := range len(name) {
		c := name[i]
		if !isTokenChar(c) {
			return "", false
		}
		if isAlpha(c) && isLower(c) == first {
			same = false
		}
		first = c == '-'
	}
	if !same {
		name = http.CanonicalHeaderKey(name)
	}
	return name, name != ""
}

// HasListed tells whether a comma-separated list names the field.
func HasListed(list, name string) bool {
	if list == "" {
		return false
	}
	for element := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(element), name) {
			return true
		}
	}
	return false
}

// isHopByHop tells whether a field says something about the connection that it was sent on.
// Such a field is never recorded, whatever KeepHeader says: it would be wrong on the next connection.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }

func isAlpha(c byte) bool { return isLower(c | 0x20) }

// isTokenChar tells whether c may be in a token as HTTP defines it, and so in the name of a field. The set
// is a constant of 128 bits: every field of every response is looked at.
func isTokenChar(c byte) bool {
	const set = 0 |
		(1<<10-1)<<'0' | (1<<26-1)<<'a' | (1<<26-1)<<'A' |
		1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' | 1<<'+' |
		1<<'-' | 1<<'.' | 1<<'^' | 1<<'_' | 1<<'`' | 1<<'|' | 1<<'~'
	if c < 64 {
		return uint64(set&(1<<64-1))>>c&1 == 1
	}
	return c < 128 && uint64(set>>64)>>(c-64)&1 == 1
}

// IsToken tells whether s is a token, as the name of a field is.
func IsToken(s string) bool {
	for i := range len(s) {
		if !isTokenChar(s[i]) {
			return false
		}
	}
	return s != ""
}
