package fasthttpidem_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// These tests are about servers of both kinds that share a store.

// startNetHTTP starts a server of net/http, behind the middleware for it.
func startNetHTTP(tb testing.TB, store idem.Store, conf httpidem.Config, h http.HandlerFunc) *testServer {
	tb.Helper()
	if conf.Scope == nil {
		conf.Scope = httpidem.SharedScope
	}
	middleware, err := httpidem.New(store, conf)
	require.NoError(tb, err)
	server := httptest.NewServer(middleware(h))
	tb.Cleanup(server.Close)
	return &testServer{addr: server.Listener.Addr().String()}
}

// common returns an answer without what the two servers say on their own.
func common(a answer) answer {
	for _, name := range []string{"Date", "Server", "Idempotency-Replayed", "Content-Length", "Transfer-Encoding"} {
		delete(a.header, name)
	}
	a.lines, a.length = nil, 0
	return a
}

// interopCases are answers that a handler of either kind can give: header fields as name, value pairs, those of
// trailers after "Trailer".
var interopCases = []struct {
	name   string
	status int
	body   string
	fields []string
}{
	{"simple", 201, "made", []string{"Content-Type", "application/json", "Location", "/payments/1"}},
	{"without a type", 200, "made", []string{"Content-Type", ""}},
	{"without a body", 202, "", []string{"X-A", "1"}},
	{"multi-valued", 200, "made", []string{"Content-Type", "a/b", "Link", "<a>", "Link", "<b>, <c>", "X-A", "1", "X-A", ""}},
	{"multi-valued, mixed", 200, "made", []string{"Content-Type", "a/b", "Link", "<a>", "X-A", "1", "Link", "<b>", "X-A", "2"}},
	{"204", 204, "", []string{"X-A", "1"}},
	{"304", 304, "", []string{"Etag", `"1"`}},
	{"205", 205, "", []string{"X-A", "1"}},
	{"500", 500, "broken", []string{"Content-Type", "text/plain"}},
	{"gzip", 200, string(gzipped(large)), []string{"Content-Type", "text/plain", "Content-Encoding", "gzip", "Vary", "Accept-Encoding"}},
	{"long", 200, strings.Repeat("long ", 20_000), []string{"Content-Type", "text/plain"}},
	{"challenge", 200, "made", []string{"Content-Type", "a/b", "X-Name", "J\u00fcrgen: \xff"}},
	{"trailers", 200, "body", []string{"Content-Type", "a/b", "Trailer", "X-Sum, X-Count", "X-Sum", "abc", "X-Count", "1", "X-Count", "2"}},
	{"trailers that never come", 200, "body", []string{"Content-Type", "a/b", "Trailer", "X-Sum, X-Never", "X-Sum", "abc"}},
}

// send writes the fields, and those that were announced as trailers last.
func send(fields []string, add, trailer func(name, value string)) {
	set := add
	for i := 0; i < len(fields); i += 2 {
		set(fields[i], fields[i+1])
		if fields[i] == "Trailer" {
			set = trailer
		}
	}
}

func TestServersReplayEachOthersRecords(t *testing.T) {
	for _, c := range interopCases {
		t.Run(c.name, func(t *testing.T) {
			store := newEngine(t, idem.Config{})
			runs := 0
			fast := startServer(t, guardWith(t, store, fasthttpidem.Config{Policy: httpidem.StoreAll})(func(ctx *fasthttp.RequestCtx) {
				runs++
				h := &ctx.Response.Header
				h.SetNoDefaultContentType(true)
				send(c.fields, h.Add, h.Add)
				ctx.SetStatusCode(c.status)
				ctx.SetBodyString(c.body)
			}))
			classic := startNetHTTP(t, store, httpidem.Config{Policy: httpidem.StoreAll}, func(w http.ResponseWriter, _ *http.Request) {
				runs++
				add := w.Header().Add
				send(c.fields, func(name, value string) {
					if add(name, value); name == "Content-Type" && value == "" {
						w.Header()["Content-Type"] = nil
					}
				}, func(string, string) {})
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
				send(c.fields, func(string, string) {}, add)
			})
			for i, order := range [][]*testServer{{fast, classic}, {classic, fast}} {
				key := fmt.Sprint("k", i)
				first := common(post(t, order[0], key, "body"))
				require.Equal(t, c.status, first.status)
				for _, server := range []*testServer{order[1], order[0]} {
					again := post(t, server, key, "body")
					require.Equal(t, "true", again.get("Idempotency-Replayed"), again.body)
					require.Equal(t, first, common(again), "recorded by %d", i)
				}
			}
			require.Equal(t, 2, runs)
		})
	}
}

// The order of net/http's trailers that were not announced is by chance, and so is that of their names in the field Trailer
// of a server that must announce them.
func TestTrailersThatNetHTTPDoesNotAnnounce(t *testing.T) {
	for name, early := range map[string]bool{"early": true, "late": false} {
		t.Run(name, func(t *testing.T) {
			store := newEngine(t, idem.Config{})
			classic := startNetHTTP(t, store, httpidem.Config{}, func(w http.ResponseWriter, _ *http.Request) {
				set := func() {
					w.Header().Set(http.TrailerPrefix+"X-Sum", "abc")
					w.Header()[http.TrailerPrefix+"X-Count"] = []string{"1", "2"}
				}
				if early {
					set()
				}
				_, _ = io.WriteString(w, strings.Repeat("long ", 1000))
				if !early {
					set()
				}
			})
			fast := startServer(t, guardWith(t, store, fasthttpidem.Config{})(status(500, "")))
			first := post(t, classic, "k", "")
			require.Len(t, first.trailer, 2)
			again := post(t, fast, "k", "")
			require.Equal(t, "true", again.get("Idempotency-Replayed"))
			require.Equal(t, first.body, again.body)
			require.Equal(t, first.trailer, again.trailer)
			require.Equal(t, []string{"X-Count, X-Sum"}, []string{sortedList(again.get("Trailer"))})
			require.Equal(t, first.get("Content-Type"), again.get("Content-Type"))
		})
	}
}

// sortedList returns a list of two names in order.
func sortedList(list string) string {
	a, b, _ := strings.Cut(list, ", ")
	return min(a, b) + ", " + max(a, b)
}

// A trailer of net/http may have been a field as well, with another value, which fasthttp can't have: there the trailer
// is as it was.
func TestTrailerOfNetHTTPThatIsAFieldAsWell(t *testing.T) {
	store := newEngine(t, idem.Config{})
	classic := startNetHTTP(t, store, httpidem.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Trailer", "X-Sum, X-Gone")
		h.Set("X-Sum", "early")
		h.Set("X-Gone", "early")
		_, _ = io.WriteString(w, "body")
		h.Set("X-Sum", "late")
		h.Del("X-Gone")
	})
	fast := startServer(t, guardWith(t, store, fasthttpidem.Config{})(status(500, "")))
	first, again := post(t, classic, "k", ""), post(t, fast, "k", "")
	require.Equal(t, "true", again.get("Idempotency-Replayed"))
	require.Equal(t, http.Header{"X-Sum": {"late"}, "X-Gone": nil}, first.trailer)
	require.Equal(t, first.trailer, again.trailer)
}

// targets are request targets. A client may send any of them to either server.
var targets = []string{
	"/", "/payments", "/payments/", "/a/b/c", "//payments", "/a//b", "/a/./b", "/a/../b", "/a%2Fb", "/a%2fb", "/a%20b", "/a+b", "/a%2Bb",
	"/it's", "/it%27s", "/%7Euser", "/~user", "/a;b=1", "/a,b", "/a:b", "/a@b", "/a&b=c", "/a!$*()b", "/[x]", "/%5Bx%5D", "/a%25b", "/%C3%BC", "/%c3%bc",
	"/%E2%82%AC", "/%ff", "/%00", "/a.b", "/a%2Eb", "/a%3Fb", "/a%23b", "/a=b", "/%70ayments", "/..", "/../x", "/a/%2E%2E/b", "/a%5Cb",
	"/?", "/?a", "/?a=1&b=2", "/?b=2&a=1", "/?a=%20", "/?a=+", "/?a=%2F", "/?a=/", "/?a=b?c", "/?a=it's", "/?%C3%BC=%c3%bc", "/?a=1&a=1", "/?&&", "/?a=1;b=2", "/x?a=1",
	"http://x/payments", "http://x/payments?a=1", "http://x/a%2Fb", "http://x/", "http://other/payments", "http://x:80/payments",
}

// rawTargets are targets that no client should send, with what it should have escaped.
var rawTargets = []string{"/\u00fc", "/a|b", "/a\"b", "/<a>", "/{id}", "/a^b", "/a`b", `/a\b`, "/?\u00fc=1", "/?a=|", "/?a=\"", "/?a=<b>", "http://x?a=1"}

func TestServersAgreeOnWhatARequestIs(t *testing.T) {
	var fastStore, classicStore keyStore
	conf := fasthttpidem.Config{Scope: fasthttpidem.ScopeHeader("Authorization")}
	fast := startServer(t, guardWith(t, &fastStore, conf)(status(200, "")))
	classic := startNetHTTP(t, &classicStore, httpidem.Config{Scope: httpidem.ScopeHeader("Authorization")}, func(http.ResponseWriter, *http.Request) {})
	seen := map[idem.Fingerprint]string{}
	ask := func(t *testing.T, method, target, key, body string) idem.Fingerprint {
		text := method + " " + target + " HTTP/1.1\nHost: x\nAuthorization: Bearer t\nIdempotency-Key: " + key + fmt.Sprintf("\nContent-Length: %d\n\n", len(body)) + body
		fastStore.requests, classicStore.requests = nil, nil
		requireProblem(t, fast.exchange(t, text), 422, httpidem.CodeKeyReused)
		requireProblem(t, classic.exchange(t, text), 422, httpidem.CodeKeyReused)
		require.Equal(t, classicStore.requests, fastStore.requests)
		return fastStore.requests[0].Fingerprint
	}
	for _, target := range targets {
		t.Run(target, func(t *testing.T) {
			got := ask(t, "POST", target, "k", "body")
			path := strings.TrimPrefix(strings.TrimPrefix(target, "http://x"), "http://other")
			path = strings.TrimSuffix(strings.TrimPrefix(path, ":80"), "?")
			if other, found := seen[got]; found {
				assert.Equal(t, other, path, "two targets are one")
			}
			seen[got] = path
		})
	}
	for _, target := range rawTargets {
		t.Run("raw "+target, func(t *testing.T) { ask(t, "POST", target, "k", "body") })
	}
	for _, method := range []string{"PUT", "PATCH", "DELETE"} {
		ask(t, method, "/payments", `"a\"b"`, "")
	}
	for _, body := range []string{"", "\x00\xff", strings.Repeat("x", 100_000)} {
		ask(t, "POST", "/payments", "k", body)
	}
}

func TestServersAgreeOnCanonicalJSON(t *testing.T) {
	store := newEngine(t, idem.Config{})
	fast := startServer(t, guardWith(t, store, fasthttpidem.Config{Fingerprint: fasthttpidem.FingerprintJSON})(status(201, "made", "Content-Type", "a/b")))
	classic := startNetHTTP(t, store, httpidem.Config{Fingerprint: httpidem.FingerprintJSON}, nil)
	for _, server := range []*testServer{fast, classic} {
		requireProblem(t, post(t, server, "k", `{"b":2,"b":2}`), 400, httpidem.CodeRequestInvalid)
		requireProblem(t, post(t, server, "k", `{"b":2`), 400, httpidem.CodeRequestInvalid)
	}
	require.Equal(t, 201, post(t, fast, "k", `{"a":1,"b":2}`).status)
	for _, server := range []*testServer{fast, classic} {
		requireReplayed(t, post(t, server, "k", `{ "b":2, "a":1 }`), 201, "made")
		requireProblem(t, post(t, server, "k", `{"b":2,"a":1.0}`), 422, httpidem.CodeKeyReused)
		requireProblem(t, post(t, server, "k", ``), 422, httpidem.CodeKeyReused)
	}
}
