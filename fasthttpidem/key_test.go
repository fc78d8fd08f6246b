package fasthttpidem_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// keyStore notes the requests that a middleware asks for, and grants nothing.
type keyStore struct {
	idem.Store
	requests []idem.Request
}

func (s *keyStore) Begin(_ context.Context, req idem.Request) (idem.Outcome, error) {
	req.Buf = nil
	s.requests = append(s.requests, req)
	return idem.Outcome{State: idem.Mismatch}, nil
}

// keyOf returns the key that the field lines stand for, and whether they were taken. The name of the field is sent in
// small letters if the server does not normalize it.
func keyOf(tb testing.TB, normalized bool, lines ...string) (string, bool) {
	tb.Helper()
	var store keyStore
	h := guardWith(tb, &store, fasthttpidem.Config{})(status(200, ""))
	req := newRequest("", "")
	req.Header.Del(httpidem.DefaultHeader)
	name := httpidem.DefaultHeader
	if !normalized {
		name = strings.ToLower(name)
		req.Header.DisableNormalizing()
	}
	for _, line := range lines {
		req.Header.Add(name, line)
	}
	a := inProcess(tb, h, req)
	if len(store.requests) == 0 {
		requireProblem(tb, a, 400, httpidem.CodeKeyInvalid)
		return "", false
	}
	require.Len(tb, store.requests, 1)
	return store.requests[0].Key, true
}

func TestKeysThatAreTaken(t *testing.T) {
	for line, want := range httpcases.Keys {
		for _, normalized := range []bool{true, false} {
			t.Run(fmt.Sprint(line, " ", normalized), func(t *testing.T) {
				got, ok := keyOf(t, normalized, line)
				require.True(t, ok)
				require.Equal(t, want, got)
			})
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	for name, lines := range httpcases.BadKeys {
		for _, normalized := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", normalized), func(t *testing.T) {
				_, ok := keyOf(t, normalized, lines...)
				require.False(t, ok)
			})
		}
	}
}

// On the wire a field's name may be written in any way, and twice in two ways.
func TestNamesOfTheKeysField(t *testing.T) {
	for _, option := range []func(*fasthttp.Server){plainNames, func(*fasthttp.Server) {}} {
		var runs atomic.Int32
		server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, status(201, "made"))), option)
		send := func(fields string) answer {
			return server.exchange(t, "POST / HTTP/1.1\nHost: x\nContent-Length: 0\n"+fields+"\n")
		}
		require.Equal(t, 201, send("Idempotency-Key: k\n").status)
		for _, name := range []string{"idempotency-key", "IDEMPOTENCY-KEY", "iDeMPOTency-kEY"} {
			requireReplayed(t, send(name+": k\n"), 201, "made")
			requireProblem(t, send(name+": k\nIdempotency-Key: k\n"), 400, httpidem.CodeKeyInvalid)
			requireProblem(t, send(name+": k\nX-Other: 1\n"+name+": k\n"), 400, httpidem.CodeKeyInvalid)
		}
		requireProblem(t, send("Idempotency_Key: k\n"), 400, httpidem.CodeKeyMissing)
		requireProblem(t, send("X-Idempotency-Key: k\n"), 400, httpidem.CodeKeyMissing)
		require.EqualValues(t, 1, runs.Load())
	}
}

func TestSpellingsOfAKeyAreOneKey(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, status(201, ""))))
	require.Equal(t, 201, post(t, server, `abc`, "").status)
	requireReplayed(t, post(t, server, `"abc"`, ""), 201, "")
	requireReplayed(t, post(t, server, `"abc";p=1`, ""), 201, "")
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, 201, post(t, server, `Abc`, "").status)
	require.EqualValues(t, 2, runs.Load(), "letters count as they are")
}

func TestHeaderNamesTheField(t *testing.T) {
	for _, option := range []func(*fasthttp.Server){plainNames, func(*fasthttp.Server) {}} {
		var runs atomic.Int32
		server := startServer(t, guard(t, fasthttpidem.Config{Header: "x-request-key"})(counted(&runs, status(201, ""))), option)
		requireProblem(t, post(t, server, "k", ""), 400, httpidem.CodeKeyMissing)
		require.Equal(t, 201, post(t, server, "k", "", "X-Request-Key", "a").status)
		requireReplayed(t, post(t, server, "other", "", "x-request-key", "a"), 201, "")
		require.EqualValues(t, 1, runs.Load())
	}
}
