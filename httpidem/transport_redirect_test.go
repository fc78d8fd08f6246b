package httpidem_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// hop is a request as a redirecting server saw it.
type hop struct{ method, path, key, body string }

// redirector redirects every path to where targets says, and answers 200 to the others.
func redirector(t *testing.T, code int, targets map[string]string, hops *[]hop) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*hops = append(*hops, hop{r.Method, r.URL.Path, strings.Join(r.Header["Idempotency-Key"], "|"), string(body)})
		if to, ok := targets[r.URL.Path]; ok {
			http.Redirect(w, r, to, code)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestTransportFollowsARedirect(t *testing.T) {
	// follow posts to /a of a server that redirects to the other one and gives what both saw.
	follow := func(t *testing.T, code int, key string, cross bool) []hop {
		t.Helper()
		var hops []hop
		other := redirector(t, code, nil, &hops)
		targets := map[string]string{"/a": "/b"}
		if cross {
			targets["/a"] = other.URL + "/b"
		}
		srv := redirector(t, code, targets, &hops)
		req := newPost(t.Context(), t, srv.URL+"/a", strings.NewReader("amount=5"))
		switch key {
		case "header":
			req.Header.Set("Idempotency-Key", "order-7")
		case "context":
			req = req.WithContext(httpidem.WithKey(t.Context(), "order-7"))
		}
		resp, err := trip((&http.Client{Transport: &httpidem.Transport{}}).Do, req)
		require.NoError(t, err)
		require.Empty(t, resp.body)
		require.Len(t, hops, 2)
		require.NotEmpty(t, hops[0].key)
		if key != "minted" {
			require.Equal(t, "order-7", hops[0].key)
		}
		return hops
	}
	for _, key := range []string{"minted", "header", "context"} {
		for _, code := range []int{307, 308} {
			t.Run("with its key on the same origin, "+key, func(t *testing.T) {
				hops := follow(t, code, key, false)
				require.Equal(t, hop{"POST", "/b", hops[0].key, "amount=5"}, hops[1])
			})
			t.Run("without its key to another origin, "+key, func(t *testing.T) {
				hops := follow(t, code, key, true)
				require.Equal(t, "POST", hops[1].method)
				require.Equal(t, "amount=5", hops[1].body)
				require.NotEmpty(t, hops[1].key, "a POST has a key wherever it goes")
				require.NotContains(t, hops[1].key, hops[0].key)
			})
		}
		for _, code := range []int{301, 302, 303} {
			t.Run("that makes it a GET to another origin, "+key, func(t *testing.T) {
				require.Equal(t, hop{"GET", "/b", "", ""}, follow(t, code, key, true)[1])
			})
		}
	}
	t.Run("with the same foreign key when it is sent again", func(t *testing.T) {
		var hops []hop
		other := redirector(t, 307, nil, &hops)
		srv := redirector(t, 307, map[string]string{"/a": other.URL}, &hops)
		for range 2 {
			req := newPost(httpidem.WithKey(t.Context(), "order-7"), t, srv.URL+"/a", strings.NewReader("x"))
			resp, err := trip((&http.Client{Transport: &httpidem.Transport{}}).Do, req)
			require.NoError(t, err)
			require.Empty(t, resp.body)
		}
		require.Len(t, hops, 4)
		require.Equal(t, hops[1].key, hops[3].key, "or the server behind the redirect would run it twice")
	})
	t.Run("and back to the first origin with the first key", func(t *testing.T) {
		base := newScript(
			replies(307, "Location: http://other.example/b"),
			replies(307, "Location: http://other.example/c"),
			replies(308, "Location: http://pay.example/d"),
			replies(200))
		_, err := trip((&http.Client{Transport: &httpidem.Transport{Base: base}}).Do, scriptPost(t, strings.NewReader("x")))
		require.NoError(t, err)
		require.Len(t, base.sent, 4)
		require.NotEqual(t, base.sent[0].key, base.sent[1].key)
		require.Equal(t, base.sent[1].key, base.sent[2].key)
		require.Equal(t, base.sent[0].key, base.sent[3].key)
	})
	t.Run("when Base reports another request than it was given", func(t *testing.T) {
		base := newScript(func(r *http.Request) (*http.Response, error) {
			resp, err := replies(307, "Location: /b")(r)
			resp.Request = scriptPost(t, nil)
			return resp, err
		}, replies(200))
		_, err := trip((&http.Client{Transport: &httpidem.Transport{Base: base}}).Do, scriptPost(t, nil))
		require.NoError(t, err)
		require.Len(t, base.sent, 2)
		require.Len(t, base.keys(), 1)
	})
	t.Run("with the caller's key in the error", func(t *testing.T) {
		var hops []hop
		other := redirector(t, 307, nil, &hops)
		other.Close()
		srv := redirector(t, 307, map[string]string{"/a": other.URL}, &hops)
		client := &http.Client{Transport: &httpidem.Transport{MaxBackoff: 1}}
		_, err := trip(client.Do, newPost(httpidem.WithKey(t.Context(), "order-7"), t, srv.URL+"/a", strings.NewReader("x")))
		require.Equal(t, "order-7", asRetryError(t, err).Key)
	})
}

func TestTransportKnowsAnOrigin(t *testing.T) {
	for _, row := range []struct {
		from, to string
		same     bool
	}{
		{"http://pay.example/a", "http://pay.example/b", true},
		{"http://pay.example/a", "http://PAY.example:80/a", true},
		{"https://pay.example:443/a", "https://user:secret@pay.example/a", true},
		{"http://[::1]/a", "http://[::1]:80/b", true},
		{"http://pay.example/a", "https://pay.example/a", false},
		{"http://pay.example/a", "http://pay.example:8080/a", false},
		{"http://pay.example/a", "http://www.pay.example/a", false},
		{"https://pay.example/a", "http://pay.example:443/a", false},
	} {
		t.Run(row.from+" to "+row.to, func(t *testing.T) {
			base := newScript(replies(307, "Location: "+row.to), replies(200))
			req := newPost(httpidem.WithKey(t.Context(), "order-7"), t, row.from, strings.NewReader("x"))
			_, err := trip((&http.Client{Transport: &httpidem.Transport{Base: base}}).Do, req)
			require.NoError(t, err)
			require.Len(t, base.sent, 2)
			require.Equal(t, row.same, base.sent[1].key == "order-7", base.sent[1].key)
		})
	}
	t.Run("unless a RoundTripper around it removed the trace of it", func(t *testing.T) {
		base := newScript(replies(200))
		req := scriptPost(t, nil)
		req.Header.Set("Idempotency-Key", "order-7")
		req.Response = &http.Response{}
		_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req)
		require.NoError(t, err)
		require.NotContains(t, base.sent[0].key, "order-7")
	})
}

// TestTransportSurvivesGoAway has a server that closes its first HTTP/2 connection with a GOAWAY, before
// or after it took the request, whose body the caller could not send twice.
func TestTransportSurvivesGoAway(t *testing.T) {
	for name, row := range map[string]struct {
		lastStream byte
		attempts   int64
	}{
		"that excludes the request":               {0, 1}, // net/http sends it again
		"that includes it, and a dead connection": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var l visitLog
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { l.note(r) }))
			srv.Config.Protocols = onlyHTTP2()
			srv.Listener = &goAwayListener{Listener: srv.Listener, lastStream: row.lastStream}
			srv.Start()
			defer srv.Close()

			std := &http.Transport{Protocols: onlyHTTP2()}
			defer std.CloseIdleConnections()
			var attempts atomic.Int64
			client := &http.Client{Transport: &httpidem.Transport{MaxBackoff: time.Millisecond, Base: roundTripFunc(func(r *http.Request) (*http.Response, error) {
				attempts.Add(1)
				return std.RoundTrip(r)
			})}}
			resp, err := trip(client.Do, newPost(t.Context(), t, srv.URL, onlyReader("amount=5")))
			require.NoError(t, err)
			require.Empty(t, resp.body)
			require.Equal(t, 200, resp.status)
			l.requireOne(t, 1, "amount=5")
			require.Equal(t, row.attempts, attempts.Load())
		})
	}
}

func onlyHTTP2() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// A goAwayListener answers its first connection itself.
type goAwayListener struct {
	net.Listener
	lastStream byte
	used       atomic.Bool
}

func (l *goAwayListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || l.used.Swap(true) {
		return conn, err
	}
	go l.goAway(conn)
	return l.Listener.Accept()
}

// goAway reads until the first DATA frame, which it answers with GOAWAY.
func (l *goAwayListener) goAway(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	const (
		preface    = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
		data       = 0
		settings   = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		goAwayHead = "\x00\x00\x08\x07\x00\x00\x00\x00\x00"
	)
	_, _ = io.WriteString(conn, settings)
	_, _ = io.CopyN(io.Discard, conn, int64(len(preface)))
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		if head[3] == data {
			break
		}
	}
	_, _ = io.WriteString(conn, goAwayHead+string([]byte{0, 0, 0, l.lastStream})+"\x00\x00\x00\x00")
	if l.lastStream == 0 {
		_, _ = io.Copy(io.Discard, conn) // the client closes it
	}
}

func TestTransportDropsAForeignKeyFromACopy(t *testing.T) {
	req := scriptPost(t, nil)
	req.Method, req.URL.Host, req.Response = http.MethodGet, "elsewhere.example", &http.Response{Request: scriptPost(t, nil)}
	req.Header.Set(httpidem.DefaultHeader, "k")
	base := newScript(replies(200))
	_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req)
	require.NoError(t, err)
	require.Equal(t, []string{""}, base.keys())
	require.Equal(t, "k", req.Header.Get(httpidem.DefaultHeader), "a RoundTripper must not change its request")
}
