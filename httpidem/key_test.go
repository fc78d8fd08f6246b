package httpidem_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// keyStore notes the key that a middleware asks for, and grants nothing.
type keyStore struct {
	idem.Store
	requests []idem.Request
}

func (s *keyStore) Begin(_ context.Context, req idem.Request) (idem.Outcome, error) {
	req.Buf = nil
	s.requests = append(s.requests, req)
	return idem.Outcome{State: idem.Mismatch}, nil
}

// keyOf returns the key that the field lines stand for, and whether they were taken.
func keyOf(tb testing.TB, lines ...string) (string, bool) {
	tb.Helper()
	var store keyStore
	h := guardWith(tb, &store, httpidem.Config{})(http.NotFoundHandler())
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Header[httpidem.DefaultHeader] = lines
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if len(store.requests) == 0 {
		requireProblem(tb, w, 400, httpidem.CodeKeyInvalid)
		return "", false
	}
	require.Len(tb, store.requests, 1)
	return store.requests[0].Key, true
}

func TestKeysThatAreTaken(t *testing.T) {
	long := strings.Repeat("k", 255)
	for line, want := range map[string]string{
		`abc`:                    `abc`,
		`"abc"`:                  `abc`,
		` "abc" `:                `abc`,
		` abc `:                  `abc`,
		`"a b, c"`:               `a b, c`,
		`"a\"b\\c"`:              `a"b\c`,
		`"\\\\"`:                 `\\`,
		`" "`:                    ` `,
		`"abc";p=1`:              `abc`,
		`"abc"; p; q=?0;  r="x"`: `abc`,
		`"abc";a=-1.5;b=tok/en:1;c=:YWJj:;d=@1659578233;e=%"f%c3%bc";f=*`: `abc`,
		`abc;p=1`:                              `abc;p=1`,
		`:YWJj:`:                               `:YWJj:`,
		`?1`:                                   `?1`,
		`a'b`:                                  `a'b`,
		`Key-A`:                                `Key-A`,
		`key-a`:                                `key-a`,
		`8e03978e-40d5-43dd-bc93-6894a57f9324`: `8e03978e-40d5-43dd-bc93-6894a57f9324`,
		`!#$%&'()*+-./:;<=>?@[\]^_{|}~` + "`":  `!#$%&'()*+-./:;<=>?@[\]^_{|}~` + "`",
		long:                                   long,
		`"` + long + `"`:                       long,
		`"` + strings.Repeat(`\"`, 255) + `"`:  strings.Repeat(`"`, 255),
	} {
		t.Run(line, func(t *testing.T) {
			got, ok := keyOf(t, line)
			require.True(t, ok)
			require.Equal(t, want, got)
		})
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	for name, lines := range map[string][]string{
		"nothing":                {""},
		"spaces":                 {"   "},
		"tab":                    {"\t"},
		"empty String":           {`""`},
		"256 bytes":              {strings.Repeat("k", 256)},
		"256 bytes in a String":  {`"` + strings.Repeat("k", 256) + `"`},
		"64 KiB":                 {strings.Repeat("k", 64<<10)},
		"two lines":              {"abc", "def"},
		"two equal lines":        {"abc", "abc"},
		"list":                   {"abc, def"},
		"list without a space":   {"abc,def"},
		"list of Strings":        {`"abc", "def"`},
		"comma at the end":       {"abc,"},
		"space inside":           {"abc def"},
		"tab inside":             {"abc\tdef"},
		"tab after a String":     {"\"abc\"\t"},
		"quote inside":           {`ab"c`},
		"quote at the end":       {`abc"`},
		"unclosed String":        {`"abc`},
		"escaped end":            {`"abc\"`},
		"backslash at the end":   {`"abc\`},
		"unknown escape":         {`"a\bc"`},
		"text after a String":    {`"abc"def`},
		"space before parameter": {`"abc" ;p=1`},
		"parameter without name": {`"abc";`},
		"parameter with capital": {`"abc";P=1`},
		"parameter without value": {
			`"abc";p=`,
		},
		"parameter with an open String":       {`"abc";p="x`},
		"parameter with an open binary":       {`"abc";p=:YWJj`},
		"parameter with a bad binary":         {`"abc";p=:Y:`},
		"parameter with a long integer":       {`"abc";p=1234567890123456`},
		"parameter with a long decimal":       {`"abc";p=1.2345`},
		"parameter with half a decimal":       {`"abc";p=1.`},
		"parameter with a bad boolean":        {`"abc";p=?2`},
		"parameter with a decimal date":       {`"abc";p=@1.5`},
		"parameter with capital hexadecimals": {`"abc";p=%"%C3%BC"`},
		"parameter with half UTF-8":           {`"abc";p=%"%c3"`},
		"NUL":                                 {"a\x00b"},
		"newline":                             {"a\nb"},
		"DEL":                                 {"a\x7fb"},
		"override":                            {"a\u202eb"},
		"letter with accent":                  {"k\u00e9"},
		"invalid UTF-8":                       {"a\xffb"},
		"NUL in a String":                     {"\"a\x00b\""},
		"DEL in a String":                     {"\"a\x7fb\""},
		"letter with accent in a String":      {"\"k\u00e9\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok := keyOf(t, lines...)
			require.False(t, ok)
		})
	}
}

func TestSpellingsOfAKeyAreOneKey(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{})(counted(&runs, status(201, "")))
	require.Equal(t, 201, post(t, h, `abc`, "").Code)
	requireReplayed(t, post(t, h, `"abc"`, ""), 201, "")
	requireReplayed(t, post(t, h, `"abc";p=1`, ""), 201, "")
	require.Equal(t, 1, runs)
	require.Equal(t, 201, post(t, h, `Abc`, "").Code)
	require.Equal(t, 2, runs, "letters count as they are")
}

func TestHeaderNamesTheField(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{Header: "x-request-key"})(counted(&runs, status(201, "")))
	requireProblem(t, post(t, h, "k", ""), 400, httpidem.CodeKeyMissing)
	require.Equal(t, 201, post(t, h, "k", "", "X-Request-Key", "a").Code)
	requireReplayed(t, post(t, h, "other", "", "X-Request-Key", "a"), 201, "")
	require.Equal(t, 1, runs)
}

// FuzzKey: what is taken is a key of 1 to 255 bytes, and is the same when it is sent as a String.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{`abc`, `"abc"`, `"a\"b\\";p=1`, `"a";b=%"%c3%bc";c=@1`, `a,b`, "\xff", `"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, ok := keyOf(t, line)
		if !ok {
			return
		}
		require.NotEmpty(t, key)
		require.LessOrEqual(t, len(key), 255)
		require.NotContains(t, key, "\x00")
		again, ok := keyOf(t, `"`+strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(key)+`"`)
		require.True(t, ok)
		require.Equal(t, key, again)
	})
}
