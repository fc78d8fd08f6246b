package httpwire

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-5bb5eb37/idem"
)

// IsGuarded tells whether a request may change something. Safe methods pass, and so does HEAD with them:
// a record could not tell its response from that of a GET. Methods are case-sensitive.
func IsGuarded(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// Held is the record of an operation whose outcome is not known. It is a response, and not
// a claim left to run out, because a store that lets claims be taken over would run it again then.
func Held(status int) idem.Response {
	return idem.Response{Status: status, Failed: true, Truncated: true}
}

// IsHeld tells whether a response is such a record.
func IsHeld(resp *idem.Response) bool { return resp.Failed && resp.Truncated }

// IsReplayable tells whether a recorded response can be sent. A status that is not final is that of a
// connection that was handed over, or no HTTP status at all.
func IsReplayable(resp *idem.Response) bool {
	return !resp.Truncated && resp.Status >= 200 && resp.Status <= 999
}

// IsDocsURL tells whether s may be a Config.DocsURL: an absolute URL without a fragment, which can be put into a Link.
func IsDocsURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && !strings.ContainsAny(s, "#<>\" ")
}
