package httpidem_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// TestTransportKeysReachTheMiddleware sends keys that differ in what a field line may lose or break. The
// middleware must take each, and take no two for one.
func TestTransportKeysReachTheMiddleware(t *testing.T) {
	keys := []string{
		"a", " a", "a ", " a ", "  a", `"a"`, `"a`, `a"`, `'a'`, `"a";b`, "a;b=1", "a,a", "a, a", ",",
		`\a`, `\"a`, `"\a"`, `a\ `, `\`, `\\`, `\ \`, `"`, `""`, " ", "  ", "order 12", `say "hi"`, "~", "?1", ":YQ==:",
		strings.Repeat("k", 255), strings.Repeat(" ", 255), strings.Repeat(`"`, 255), strings.Repeat(`\ `, 127),
	}
	for _, protocol := range wireProtocols {
		t.Run(protocol, func(t *testing.T) {
			var runs atomic.Int64
			once := onceOn(t, onceEngine(t), func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, "run ", runs.Add(1))
			})
			srv, client := serveClient(t, protocol, once.ServeHTTP)
			for _, replayed := range []string{"", "true"} {
				for i, key := range keys {
					resp, err := trip(client.Do, newPost(httpidem.WithKey(t.Context(), key), t, srv.URL, strings.NewReader("x")))
					require.NoError(t, err, "%q", key)
					require.Equal(t, fmt.Sprint("run ", i+1), resp.body, "%q", key)
					require.Equal(t, replayed, resp.header.Get("Idempotency-Replayed"), "%q", key)
				}
			}
		})
	}
}

func TestTransportWritesAKey(t *testing.T) {
	for key, line := range map[string]string{
		"order-7":  `order-7`,
		`a\b`:      `a\b`,
		"order 12": `"order 12"`,
		"a,b":      `"a,b"`,
		`say "hi"`: `"say \"hi\""`,
		`a\ b`:     `"a\\ b"`,
		" a":       `" a"`,
		`"a"`:      `"\"a\""`,
	} {
		base := newScript(cutOff)
		ctx := httpidem.WithKey(t.Context(), key)
		_, err := trip((&httpidem.Transport{Base: base, MaxBackoff: 1}).RoundTrip, scriptPost(t, nil).WithContext(ctx))
		require.Equal(t, key, asRetryError(t, err).Key)
		require.Equal(t, []string{line}, base.keys(), "in all attempts")
	}
}

func TestTransportNamesTheKeysThatItTakes(t *testing.T) {
	inHeader := func(line string) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request { r.Header.Set("Idempotency-Key", line); return r }
	}
	for name, row := range map[string]struct {
		change func(*http.Request) *http.Request
		want   string
	}{
		"too long": {func(r *http.Request) *http.Request {
			return r.WithContext(httpidem.WithKey(r.Context(), strings.Repeat("k", 256)))
		}, "256 characters, at most 255"},
		"not printable": {func(r *http.Request) *http.Request {
			return r.WithContext(httpidem.WithKey(r.Context(), "a\x7f"))
		}, "not printable ASCII, which is space to ~"},
		"space in front in the header": {inHeader(" a"), "begins or ends with a space"},
		"space behind in the header":   {inHeader("a "), "begins or ends with a space"},
		"only a space in the header":   {inHeader(" "), "begins or ends with a space"},
	} {
		base, body := newScript(replies(200)), &closeCounter{Reader: strings.NewReader("x")}
		_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, row.change(scriptPost(t, body)))
		require.ErrorContains(t, err, row.want, name)
		require.Empty(t, base.sent, name)
		require.Equal(t, 1, body.closed, name)
	}
}

// TestTransportLeavesAKeyInTheHeader checks what the caller wrote there, and the key by which an error
// lets him repeat it: the same to the middleware, with and without the field, and with it the same bytes.
func TestTransportLeavesAKeyInTheHeader(t *testing.T) {
	for line, row := range map[string]struct{ key, without string }{
		`order-7`:               {`order-7`, `order-7`},
		`"order-7"`:             {`order-7`, `order-7`},
		`"order 12"`:            {`order 12`, `"order 12"`},
		`"order 12";v=1`:        {`order 12`, `"order 12"`},
		`"\"a\""`:               {`"a"`, `"\"a\""`},
		`not for us, "but sent`: {`not for us, "but sent`, `"not for us, \"but sent"`},
	} {
		base := newScript(cutOff)
		send := (&httpidem.Transport{Base: base, MaxAttempts: 1}).RoundTrip
		req := scriptPost(t, nil)
		req.Header.Set("Idempotency-Key", line)
		_, err := trip(send, req)
		key := asRetryError(t, err).Key
		require.Equal(t, row.key, key)

		again := httpidem.WithKey(t.Context(), key)
		_, err = trip(send, req.Clone(again))
		require.Equal(t, key, asRetryError(t, err).Key)
		_, err = trip(send, scriptPost(t, nil).WithContext(again))
		require.Equal(t, key, asRetryError(t, err).Key)
		require.Len(t, base.sent, 3)
		require.Equal(t, []string{line, line, row.without}, []string{base.sent[0].key, base.sent[1].key, base.sent[2].key})
	}
	t.Run("that is no key unless the context has another", func(t *testing.T) {
		base := newScript(replies(200))
		for _, line := range []string{" order 7", "a\x00b", ""} {
			req := scriptPost(t, nil)
			req.Header.Set("Idempotency-Key", line)
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req.WithContext(httpidem.WithKey(t.Context(), "order 7")))
			require.NoError(t, err)
		}
		require.Equal(t, []string{`"order 7"`}, base.keys())
	})
}

func TestTransportRedirectsAWrittenKey(t *testing.T) {
	base := newScript(replies(307, "Location: /b"), replies(308, "Location: http://other.example/c"), cutOff)
	client := &http.Client{Transport: &httpidem.Transport{Base: base, MaxAttempts: 1}}
	var foreign []string
	for _, line := range []string{"", `"order 12"`, `"order 12";v=1`} {
		base.sent = nil
		req := newPost(t.Context(), t, "http://pay.example/a", strings.NewReader("x"))
		if line == "" {
			req, line = req.WithContext(httpidem.WithKey(t.Context(), "order 12")), `"order 12"`
		} else {
			req.Header.Set("Idempotency-Key", line)
		}
		_, err := trip(client.Do, req)
		require.Equal(t, "order 12", asRetryError(t, err).Key)
		require.Len(t, base.sent, 3)
		require.Equal(t, []string{line, line}, []string{base.sent[0].key, base.sent[1].key})
		foreign = append(foreign, base.sent[2].key)
	}
	require.Equal(t, []string{foreign[0], foreign[0], foreign[0]}, foreign, "derived from the key, however it is written")
	require.NotContains(t, foreign[0], "order")
}
