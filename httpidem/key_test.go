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
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
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
	for line, want := range httpcases.Keys {
		t.Run(line, func(t *testing.T) {
			got, ok := keyOf(t, line)
			require.True(t, ok)
			require.Equal(t, want, got)
		})
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	for name, lines := range httpcases.BadKeys {
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
