package httpidem

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// The codes of the answers that the middleware gives itself. They are stable: clients may decide on them.
const (
	CodeKeyMissing          = "key_missing"           // 400: the request needs a key
	CodeKeyInvalid          = "key_invalid"           // 400: the field is not one key of 1 to 255 bytes
	CodeRequestInvalid      = "request_invalid"       // 400: the body ended early, was read before, or has no fingerprint
	CodeScopeUnknown        = "scope_unknown"         // 401: it can't be told whom the key belongs to
	CodeInProgress          = "in_progress"           // 409: the first request with the key still runs
	CodeOutcomeUnknown      = "outcome_unknown"       // 409: whether the first request took effect is not known
	CodeResponseNotRetained = "response_not_retained" // 410: the first request was answered; its response is gone
	CodeRequestTooLarge     = "request_too_large"     // 413: the body is above Config.MaxRequestBytes
	CodeKeyReused           = "key_reused"            // 422: the key was used for another request
	CodeStoreUnavailable    = "store_unavailable"     // 503: the store is full or down
)

// A Problem is an answer of the middleware's own, in place of the handler's. It is also the error by
// which Config.Scope and Config.Fingerprint say how a request is to be refused.
type Problem struct { //nolint:errname // an answer in the first place
	// Status is the HTTP status of the answer.
	Status int

	// Code is one of the constants of this package, or a word of the function that made the Problem.
	Code string

	// Title and Detail explain it to a human. Both may be empty.
	Title, Detail string

	// OriginalStatus is what the first request was answered with, if Code is [CodeResponseNotRetained].
	OriginalStatus int

	// RetryAfter is when it may be worth to try again. Zero means that it is not, or not known.
	RetryAfter time.Duration

	docs string // Config.DocsURL
}

// Error returns code and detail.
func (p *Problem) Error() string { return "httpidem: " + p.Code + ": " + cmp.Or(p.Detail, p.Title) }

// ServeHTTP writes the problem as application/problem+json (RFC 9457) with the additional members code
// and, if it is set, original_status. An ErrorHandler may call it for what it doesn't write itself.
func (p *Problem) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	kind := ""
	if p.docs != "" {
		kind = p.docs + "#" + p.Code
	}
	body, err := json.Marshal(struct {
		Type           string `json:"type"`
		Title          string `json:"title"`
		Status         int    `json:"status"`
		Detail         string `json:"detail,omitempty"`
		Code           string `json:"code"`
		OriginalStatus int    `json:"original_status,omitempty"`
	}{cmp.Or(kind, "about:blank"), cmp.Or(p.Title, http.StatusText(p.Status)), p.Status, p.Detail, p.Code, p.OriginalStatus})
	if err != nil {
		panic(err) // strings and numbers can always be marshalled, invalid UTF-8 included
	}
	w.Header().Set("Content-Type", "application/problem+json")
	p.setHeader(w.Header())
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
}

// setHeader sets the fields that a client acts on, whoever writes the body. It may be called twice.
func (p *Problem) setHeader(h http.Header) {
	if p.RetryAfter > 0 {
		// Rounded up, so that a client which obeys does not come too early.
		seconds := (p.RetryAfter-1)/time.Second + 1
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	if p.docs == "" {
		return
	}
	if link := "<" + p.docs + `>; rel="describedby"`; !slices.Contains(h["Link"], link) {
		h.Add("Link", link)
	}
}

// problemFor returns the answer to a duplicate that is not given the recorded response.
func problemFor(out *idem.Outcome) *Problem {
	switch out.State {
	case idem.InProgress:
		return &Problem{
			Status: http.StatusConflict, Code: CodeInProgress, Title: "Request in progress",
			Detail:     "The first request with this key has not been answered yet.",
			RetryAfter: max(out.Remaining, 1),
		}
	case idem.Mismatch:
		return &Problem{
			Status: http.StatusUnprocessableEntity, Code: CodeKeyReused, Title: "Key reused",
			Detail: "The key was used for a request with another method, URL or content. A new request needs a new key.",
		}
	case idem.Replay: // of a response that there is nothing to replay of
		if isHeld(&out.Response) {
			break
		}
		return &Problem{
			Status: http.StatusGone, Code: CodeResponseNotRetained, Title: "Response not retained",
			Detail:         "The first request with this key was answered. It is not run again, and its response was not kept.",
			OriginalStatus: out.Response.Status,
		}
	}
	return &Problem{
		Status: http.StatusConflict, Code: CodeOutcomeUnknown, Title: "Outcome unknown",
		Detail: "The first request with this key ended without a result. Whether it took effect has to be found out; it is not run again.",
	}
}

// problemOf returns the answer that an error stands for: itself if it is a [*Problem], otherwise. A status
// that can't be the answer's is not taken.
func problemOf(err error, otherwise Problem) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		status := otherwise.Status
		otherwise = *p // a copy, because it may be shared and is about to be changed
		if p.Status < 200 || p.Status > 999 {
			otherwise.Status = status
		}
	}
	return &otherwise
}
