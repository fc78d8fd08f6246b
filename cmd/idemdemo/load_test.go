package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// runLoad runs a small load against url.
func runLoad(t *testing.T, url string, more ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args := append([]string{"load", "-url", url, "-payments", "10", "-copies", "4"}, more...)
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestLoad loads servers that keep their promises and servers that do not.
func TestLoad(t *testing.T) {
	t.Run("every copy gets its payment's one result", func(t *testing.T) {
		url := startService(t, usual)
		code, table, errs := runLoad(t, url+"/")
		require.Equal(t, exitOK, code, "%s%s", table, errs)
		require.Regexp(t, `(?m)^  requests answered +40 of 40  `, table)
		require.Regexp(t, `(?m)^  201 Created +40$`, table)
		require.Empty(t, errs)
		s := waitForSnapshot(t, url, func(snapshot) bool { return true })
		require.Equal(t, 10, s.Charges)
	})

	t.Run("clients that give up before the payment is done get its result later", func(t *testing.T) {
		url := startService(t, usual)
		code, table, errs := runLoad(t, url, "-patience", "60ms")
		require.Equal(t, exitOK, code, "%s%s", table, errs)
		require.Regexp(t, `(?m)^  replays +40  `, table)
	})

	t.Run("a server that charges every copy fails", func(t *testing.T) {
		mux := http.NewServeMux()
		newAPI().routes(mux, func(h http.Handler) http.Handler { return h })
		server := httptest.NewServer(mux)
		defer server.Close()
		code, _, errs := runLoad(t, server.URL, "-patience", "30s")
		require.Equal(t, exitFailed, code)
		require.Equal(t, "idemdemo: payments whose copies got different results: 10\n", errs)
	})

	t.Run("an answer that is no result fails", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				http.Error(w, "moved out", http.StatusGone)
			}
		}))
		defer server.Close()
		code, table, errs := runLoad(t, server.URL)
		require.Equal(t, exitFailed, code)
		require.Equal(t, "idemdemo: stopped at the first request without a result: 410 Gone moved out\n", errs)
		require.Contains(t, table, "410 Gone")
		require.Regexp(t, `(?m)^  requests answered +\d+ of 40  `, table)
	})

	t.Run("a server that does not answer is left in peace", func(t *testing.T) {
		for name, header := range map[string]bool{"at all": false, "to the end": true} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if header {
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
			}))
			defer server.Close()
			var table, errs bytes.Buffer
			l := &load{url: server.URL, payments: 10, copies: 4, within: 50 * time.Millisecond}
			require.Equal(t, exitFailed, exitCode(l.run(t.Context(), &table, &errs), &errs), name)
			require.Equal(t, "idemdemo: -url "+server.URL+": no answer within 50ms; is it a server that idemdemo serve started?\n", errs.String())
			require.Empty(t, table.String())
		}
	})

	t.Run("nothing is sent to an address that is not meant", func(t *testing.T) {
		gone := httptest.NewServer(http.NotFoundHandler())
		gone.Close()
		strange := httptest.NewServer(http.NotFoundHandler())
		defer strange.Close()
		for url, want := range map[string]string{
			"http://payments.example.com": "-remote",
			"http://10.0.0.7:8080":        "-remote",
			"127.0.0.1:8080":              "want an address such as",
			"ftp://127.0.0.1":             "want an address such as",
			"http:///payments":            "want an address such as",
			gone.URL:                      "go run ./cmd/idemdemo serve",
			strange.URL:                   "404 Not Found for /ledger",
		} {
			code, table, errs := runLoad(t, url)
			require.Equal(t, exitFailed, code, url)
			require.Contains(t, errs, want)
			require.Empty(t, table)
		}
	})
}

// TestIsLoopback has addresses that look like this machine and may not be.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example.com": false,
	} {
		require.Equal(t, want, isLoopback(host), host)
	}
}
