package verify_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// keyStore notes the key that the middleware asks for, and grants nothing.
type keyStore struct {
	idem.Store
	key  string
	seen bool
}

func (s *keyStore) Begin(_ context.Context, req idem.Request) (idem.Outcome, error) {
	s.key, s.seen = req.Key, true
	return idem.Outcome{State: idem.Mismatch}, nil
}

// keyOfLine returns the key that the middleware reads in a field line, and whether it takes the line.
func keyOfLine(t *testing.T, line string) (string, bool) {
	var store keyStore
	middleware, err := httpidem.New(&store, httpidem.Config{Scope: httpidem.SharedScope})
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Header[httpidem.DefaultHeader] = []string{line}
	w := httptest.NewRecorder()
	middleware(http.NotFoundHandler()).ServeHTTP(w, r)
	require.Equal(t, map[bool]int{true: 422, false: 400}[store.seen], w.Code)
	return store.key, store.seen
}

// keyByRFC9651 is the same by the other implementation, for a line that begins with a quote.
func keyByRFC9651(line string) (string, bool) {
	item, err := httpsfv.UnmarshalItem([]string{line})
	if err != nil {
		return "", false
	}
	key, ok := item.Value.(string)
	return key, ok && len(key) >= 1 && len(key) <= 255
}

// structuredKeys are the seeds: each form of a parameter, whole and broken.
var structuredKeys = []string{
	`"abc"`, `"a\"b\\c"`, `""`, `"abc`, `"a\bc"`, `"abc" x`, `"abc"; `, `"abc";`, `"abc" ;a`, "\"a\x7f\"", "\"\t\"",
	`"k";a`, `"k";a;b;*c-d_e.f*`, `"k";A=1`, `"k";a=`, `"k";a==1`, `"k";a=1;a=2`,
	`"k";a=1`, `"k";a=-1`, `"k";a=--1`, `"k";a=-`, `"k";a=123456789012345`, `"k";a=1234567890123456`, `"k";a=0001`,
	`"k";a=1.5`, `"k";a=1.`, `"k";a=.5`, `"k";a=1.2345`, `"k";a=123456789012.1`, `"k";a=1234567890123.1`, `"k";a=1.2.3`,
	`"k";a="x"`, `"k";a="x\"`, `"k";a="x\n"`, `"k";a=tok`, `"k";a=*tok/en:!#$%&'`, `"k";a=t(`, `"k";a=(1)`,
	`"k";a=:YWJj:`, `"k";a=::`, `"k";a=:YWJj`, `"k";a=:YW J:`, `"k";a=:YQ:`, `"k";a=:YQ==:`, `"k";a=:YR==:`, `"k";a=:Y=Q=:`,
	`"k";a=?0`, `"k";a=?1;b`, `"k";a=?2`, `"k";a=?`, `"k";a=?10`,
	`"k";a=@1`, `"k";a=@-1`, `"k";a=@`, `"k";a=@1.0`, `"k";a=@x`,
	`"k";a=%"f%c3%bc"`, `"k";a=%"%C3"`, `"k";a=%"%c3"`, `"k";a=%"%"`, `"k";a=%"x`, `"k";a=%`, `"k";a=%""`, `"k";a=%"%+1"`,
}

func TestStructuredKeys(t *testing.T) {
	taken := 0
	for _, line := range structuredKeys {
		want, wantOK := keyByRFC9651(line)
		got, ok := keyOfLine(t, line)
		require.Equal(t, wantOK, ok, line)
		require.Equal(t, want, got, line)
		if ok {
			taken++
		}
	}
	require.Greater(t, taken, 20, "the seeds must not all be broken")
}

// FuzzStructuredKey: a field line that begins with a quote is read as another implementation of RFC 9651
// reads it.
func FuzzStructuredKey(f *testing.F) {
	for _, line := range structuredKeys {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if !strings.HasPrefix(strings.TrimLeft(line, " "), `"`) {
			line = `"` + line
		}
		want, wantOK := keyByRFC9651(line)
		got, ok := keyOfLine(t, line)
		require.Equal(t, wantOK, ok)
		if ok {
			require.Equal(t, want, got)
		}
	})
}
