package httpwire

import "strings"

// MaxKeyBytes bounds a key. It is the engine's own default limit; every store takes a key that long.
const MaxKeyBytes = 255

// ParseKey returns the key that the field lines of a request carry, and whether they carry one.
//
// Two spellings are taken. The draft wants a structured-field String, `"8e03978e"`; most clients in the
// field send the characters as they are, 8e03978e. Both name the same key, so that a client may change
// its library between two attempts. A bare key must not contain a quote or a comma: with them it could
// be half a String, or two keys that a proxy joined, and guessing would make one key of two.
func ParseKey(lines []string) (key string, ok bool) {
	if len(lines) != 1 {
		return "", false // of two lines neither is the one that the client meant
	}
	line := strings.Trim(lines[0], " ")
	if strings.HasPrefix(line, `"`) {
		key, ok = parseStringItem(line)
	} else {
		key, ok = line, IsBareKey(line)
	}
	return key, ok && key != "" && len(key) <= MaxKeyBytes
}

// IsBareKey tells whether a field line is a key as it is, without quotes around it.
func IsBareKey(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == ',' {
			return false
		}
	}
	return true
}
