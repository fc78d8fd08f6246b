package pgstore

import (
	"strings"
	"unicode/utf8"
)

// worstKey is into how many bytes escape may turn one.
const worstKey = 4

// escape returns key as text that Postgres can hold: valid UTF-8 without NUL. Ordinary keys stay as they are, so that
// people can read the table and ask for a key in psql; a backslash becomes two, and any other byte that is a control
// character or not UTF-8 becomes \xHH. No two keys become the same text (FuzzEscape).
//
// What is escaped must never change: another version of the program would not find the records of this one. So
// nothing here depends on what Unicode says of a character.
func escape(key string) string {
	if isPlain(key) {
		return key
	}
	var b strings.Builder
	b.Grow(len(key) + 16)
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < ' ', r == 0x7f:
			const digits = "0123456789abcdef"
			b.Write([]byte{'\\', 'x', digits[key[i]>>4], digits[key[i]&15]})
		case r == '\\':
			b.WriteString(`\\`)
		default:
			b.WriteString(key[i : i+size])
		}
		i += size
	}
	return b.String()
}

// isPlain tells whether escape has nothing to do, which is so for most keys.
func isPlain(key string) bool {
	for i := range len(key) {
		if c := key[i]; c < ' ' || c >= 0x7f || c == '\\' {
			return false
		}
	}
	return true
}
