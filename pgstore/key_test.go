package pgstore

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestEscape(t *testing.T) {
	for key, want := range map[string]string{
		"":                   "",
		"order-17":           "order-17",
		"é ü 漢 \u202e\ufffd": "é ü 漢 \u202e\ufffd",
		`a\b`:                `a\\b`,
		"a\x00b":             `a\x00b`,
		`a\x00b`:             `a\\x00b`,
		"\n\x7f":             `\x0a\x7f`,
		"k\xe9y":             `k\xe9y`,
		"\xed\xa0\x80":       `\xed\xa0\x80`, // half of a surrogate pair, which no UTF-8 has
	} {
		require.Equal(t, want, escape(key), "%q", key)
	}
}

// unescape is escape's inverse. That there is one shows that no two keys become the same text.
func unescape(tb testing.TB, text string) string {
	tb.Helper()
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
			b.WriteByte(text[i])
		case text[i+1] == '\\':
			b.WriteByte('\\')
			i++
		default:
			n, err := strconv.ParseUint(text[i+2:i+4], 16, 8)
			require.NoError(tb, err)
			b.WriteByte(byte(n))
			i += 3
		}
	}
	return b.String()
}

func FuzzEscape(f *testing.F) {
	for _, key := range []string{"key", "\x00", `\`, `\x00`, "\xff\xfe", "k\u00e9y", "\\\xff", "\xf0\x9f\x98", "\u2028"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		text := escape(key)
		require.Equal(t, key, unescape(t, text))
		require.True(t, utf8.ValidString(text), "Postgres takes nothing else")
		require.NotContains(t, text, "\x00")
		require.LessOrEqual(t, len(text), worstKey*len(key))
	})
}
