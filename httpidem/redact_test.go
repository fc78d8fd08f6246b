package httpidem_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

// trailing answers with trailers: X-Sum was announced and is a field as well, X-Count was not announced, and X-Gone was
// announced and is gone at the end.
func trailing(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Trailer", "X-Sum, X-Gone")
	h.Set("X-Sum", "early")
	h.Set("X-Gone", "early")
	_, _ = w.Write([]byte("body"))
	h["X-Sum"] = []string{"late", "later"}
	h.Set(http.TrailerPrefix+"X-Count", "4242")
	h.Del("X-Gone")
}

func TestRedactSeesTrailers(t *testing.T) {
	for _, test := range []struct {
		name            string
		redact          func(h http.Header)
		header, trailer http.Header // of the replay
	}{
		{
			name: "and leaves them", redact: func(http.Header) {},
			header:  http.Header{"X-Sum": {"early"}, "X-Gone": {"early"}},
			trailer: http.Header{"X-Sum": {"late", "later"}, "X-Count": {"4242"}, "X-Gone": nil},
		},
		{
			name: "and deletes them", redact: func(h http.Header) {
				h.Del("X-Sum")
				h.Del("X-Count")
			},
			header:  http.Header{"X-Gone": {"early"}},
			trailer: http.Header{"X-Sum": nil, "X-Gone": nil},
		},
		{
			name: "and changes them", redact: func(h http.Header) {
				h["X-Sum"][2] = "***"
				h.Set("X-Count", "****")
			},
			header:  http.Header{"X-Sum": {"early"}, "X-Gone": {"early"}},
			trailer: http.Header{"X-Sum": {"late", "***"}, "X-Count": {"****"}, "X-Gone": nil},
		},
		{
			name: "and leaves the field of the name alone", redact: func(h http.Header) { h["X-Sum"] = h["X-Sum"][:1] },
			header:  http.Header{"X-Sum": {"early"}, "X-Gone": {"early"}},
			trailer: http.Header{"X-Sum": nil, "X-Count": {"4242"}, "X-Gone": nil},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := startServer(t, guard(t, httpidem.Config{Redact: func(_ int, h http.Header, body []byte) []byte {
				assert.Equal(t, []string{"early", "late", "later"}, h["X-Sum"])
				assert.Equal(t, []string{"4242"}, h["X-Count"])
				test.redact(h)
				return body
			}})(http.HandlerFunc(trailing)), onlyHTTP1)
			first, again := exchange(t, server, "/"), exchange(t, server, "/")
			require.Equal(t, []string{"late", "later"}, first.trailer["X-Sum"])
			require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
			for _, name := range []string{"X-Sum", "X-Count", "X-Gone"} {
				require.Equal(t, test.header[name], again.header[name], name)
			}
			require.Equal(t, test.trailer, again.trailer)
		})
	}
}

// A trailer that was not announced may stand in the header from the start, and its value may be another at the end.
func TestRedactSeesTrailersThatWereSetEarly(t *testing.T) {
	for _, proto := range []string{onlyHTTP1, "HTTP/2.0"} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(proto, " changed late=", late), func(t *testing.T) {
				server := startServer(t, guard(t, httpidem.Config{Redact: func(_ int, h http.Header, body []byte) []byte {
					h.Del("X-Secret")
					h.Set("X-Other", "*"+h.Get("X-Other"))
					return body
				}})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					h := w.Header()
					for _, name := range []string{"X-Secret", "X-Other", "X-Gone"} {
						h.Set(http.TrailerPrefix+name, "early")
					}
					_, _ = w.Write([]byte("body"))
					if late {
						h.Set(http.TrailerPrefix+"X-Other", "late")
						h.Del(http.TrailerPrefix + "X-Gone")
					}
				})), proto)
				first, again := exchange(t, server, "/"), exchange(t, server, "/")
				require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
				if late {
					require.Equal(t, http.Header{"X-Secret": {"early"}, "X-Other": {"late"}}, first.trailer)
					require.Equal(t, http.Header{"X-Other": {"*late"}}, again.trailer)
				} else {
					require.Equal(t, http.Header{"X-Secret": {"early"}, "X-Other": {"early"}, "X-Gone": {"early"}}, first.trailer)
					require.Equal(t, http.Header{"X-Other": {"*early"}, "X-Gone": {"early"}}, again.trailer)
				}
			})
		}
	}
}
