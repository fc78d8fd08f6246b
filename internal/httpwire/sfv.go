package httpwire

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// This file reads what RFC 9651 calls an Item, as far as a key needs it: the value must be a String,
// and parameters are checked for their syntax and ignored. The module verify fuzzes it against another
// implementation.

// parseStringItem returns the value of s, an Item that is a String without spaces around it.
func parseStringItem(s string) (value string, ok bool) {
	value, rest, ok := cutString(s)
	return value, ok && areParameters(rest)
}

// cutString cuts a String off the front of s. A value without escapes shares the memory of s.
func cutString(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	var unescaped []byte // the value up to start, if there was an escape
	start := 1
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if unescaped != nil {
				return string(append(unescaped, s[start:i]...)), s[i+1:], true
			}
			return s[start:i], s[i+1:], true
		case c == '\\':
			unescaped = append(unescaped, s[start:i]...)
			if i++; i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", "", false
			}
			start = i // the escaped character is an ordinary one from here on
		case c < ' ' || c > '~':
			return "", "", false
		}
	}
	return "", "", false // it was not closed
}

// areParameters tells whether s is a sequence of parameters, which may be empty: each is a semicolon, any
// spaces, a name in lower case, and perhaps an equals sign and a bare item. A name may come twice.
func areParameters(s string) bool {
	for s != "" {
		if s[0] != ';' {
			return false
		}
		s = strings.TrimLeft(s[1:], " ")
		if s == "" || (!isLower(s[0]) && s[0] != '*') {
			return false
		}
		s = strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz0123456789_-.*")
		if value, found := strings.CutPrefix(s, "="); found {
			var ok bool
			if s, ok = cutBareItem(value); !ok {
				return false
			}
		}
	}
	return true
}

// cutBareItem cuts a bare item of any type off the front of s and returns what follows it. The first byte
// decides the type: a String, a Boolean, a Byte Sequence, a Date, a Display String, a Token or a number.
func cutBareItem(s string) (rest string, ok bool) {
	if s == "" {
		return "", false
	}
	switch c := s[0]; {
	case c == '"':
		_, rest, ok = cutString(s)
		return rest, ok
	case c == '?':
		return s[min(2, len(s)):], strings.HasPrefix(s, "?0") || strings.HasPrefix(s, "?1")
	case c == ':':
		value, after, found := strings.Cut(s[1:], ":")
		return after, found && isBase64(value)
	case c == '@':
		return cutNumber(s[1:])
	case c == '%':
		return cutDisplayString(s)
	case c == '*' || isAlpha(c):
		return strings.TrimLeftFunc(s, func(r rune) bool { return r < 128 && (isTokenChar(byte(r)) || r == ':' || r == '/') }), true
	default:
		rest, _ = cutNumber(s)
		return rest, rest != s
	}
}

// cutNumber cuts an Integer (of at most 15 digits) or a Decimal (of at most 12, and 3 after the point)
// off the front of s. It returns s itself if there is none.
func cutNumber(s string) (rest string, isInteger bool) {
	digits := strings.TrimPrefix(s, "-")
	rest = strings.TrimLeft(digits, "0123456789")
	whole := len(digits) - len(rest)
	if whole == 0 || whole > 15 {
		return s, false
	}
	fraction, found := strings.CutPrefix(rest, ".")
	if !found {
		return rest, true
	}
	rest = strings.TrimLeft(fraction, "0123456789")
	if places := len(fraction) - len(rest); whole > 12 || places == 0 || places > 3 {
		return s, false
	}
	return rest, false
}

// cutDisplayString cuts a Display String, which is UTF-8 in lower-case percent escapes, off the front of s.
func cutDisplayString(s string) (rest string, ok bool) {
	s, ok = strings.CutPrefix(s, `%"`)
	if !ok {
		return "", false
	}
	text, rest, ok := strings.Cut(s, `"`)
	if !ok {
		return "", false
	}
	var decoded []byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c < ' ' || c > '~' {
			return "", false
		}
		if c == '%' {
			if len(text)-i < 3 || strings.ContainsAny(text[i+1:i+3], "ABCDEF") {
				return "", false
			}
			b, err := hex.DecodeString(text[i+1 : i+3])
			if err != nil {
				return "", false
			}
			c, i = b[0], i+2
		}
		decoded = append(decoded, c)
	}
	return rest, utf8.Valid(decoded)
}

// isBase64 tells whether s is base64 with its padding, as it should be; RFC 9651 leaves it to the parser
// whether to insist on it.
func isBase64(s string) bool {
	if strings.ContainsAny(s, "\r\n") { // which the decoder would skip
		return false
	}
	_, err := base64.StdEncoding.DecodeString(s)
	return err == nil
}
