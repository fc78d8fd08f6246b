package httpidem

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
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

	// Type is the URL of a page that explains it, or empty. The middleware makes it of Config.DocsURL.
	Type string

	// OriginalStatus is what the first request was answered with, if Code is [CodeResponseNotRetained].
	OriginalStatus int

	// RetryAfter is when it may be worth to try again. Zero means that it is not, or not known.
	RetryAfter time.Duration
}

// storeRetryAfter is what a client is told when the store is full or down, and nobody knows for how long.
const storeRetryAfter = time.Second

// problems are the answers to the codes.
var problems = map[string]Problem{
	CodeKeyMissing: {
		Status: http.StatusBadRequest, Title: "Idempotency key missing",
		Detail: "The request needs a header field with an idempotency key.",
	},
	CodeKeyInvalid: {
		Status: http.StatusBadRequest, Title: "Idempotency key invalid",
		Detail: "A key is one field of 1 to 255 visible ASCII characters without quote and comma, or a structured-field String.",
	},
	CodeRequestInvalid: {
		Status: http.StatusBadRequest, Title: "Request invalid",
		Detail: "The body of the request ended early, or can't be read as what it should be.",
	},
	CodeScopeUnknown: {
		Status: http.StatusUnauthorized, Title: "Scope unknown",
		Detail: "The request does not say whom its idempotency key belongs to.",
	},
	CodeInProgress: {
		Status: http.StatusConflict, Title: "Request in progress",
		Detail: "The first request with this key has not been answered yet.",
	},
	CodeOutcomeUnknown: {
		Status: http.StatusConflict, Title: "Outcome unknown",
		Detail: "The first request with this key ended without a result. Whether it took effect has to be found out; it is not run again.",
	},
	CodeResponseNotRetained: {
		Status: http.StatusGone, Title: "Response not retained",
		Detail: "The first request with this key was answered. It is not run again, and its response was not kept.",
	},
	CodeRequestTooLarge: {
		Status: http.StatusRequestEntityTooLarge, Title: "Request too large",
		Detail: "The body of the request is too large to be taken.",
	},
	CodeKeyReused: {
		Status: http.StatusUnprocessableEntity, Title: "Key reused",
		Detail: "The key was used for a request with another method, URL or content. A new request needs a new key.",
	},
	CodeStoreUnavailable: {
		Status: http.StatusServiceUnavailable, Title: "Store unavailable", RetryAfter: storeRetryAfter,
		Detail: "The request was not run.",
	},
}

// NewProblem returns the answer that the middleware gives with one of its codes, for a middleware of one's own. With
// any other code it is a bare 500.
func NewProblem(code string) *Problem {
	p, ok := problems[code]
	if !ok {
		p.Status = http.StatusInternalServerError
	}
	p.Code = code
	return &p
}

// ProblemFor returns the answer to a duplicate that is not given the recorded response, see [idem.Store].
func ProblemFor(out *idem.Outcome) *Problem {
	switch out.State {
	case idem.InProgress:
		p := NewProblem(CodeInProgress)
		p.RetryAfter = max(out.Remaining, 1)
		return p
	case idem.Mismatch:
		return NewProblem(CodeKeyReused)
	case idem.Replay: // of a response that there is nothing to replay of
		if httpwire.IsHeld(&out.Response) {
			break
		}
		p := NewProblem(CodeResponseNotRetained)
		p.OriginalStatus = out.Response.Status
		return p
	}
	return NewProblem(CodeOutcomeUnknown)
}

// ProblemOf returns the answer that an error of a function of the user's stands for: a copy of it if it is a [*Problem],
// otherwise that of the code. A status that can't be an answer's is not taken.
func ProblemOf(err error, code string) *Problem {
	otherwise := NewProblem(code)
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		return otherwise
	}
	other := *p // a copy, because it may be shared and is about to be changed
	if p.Status < 200 || p.Status > 999 {
		other.Status = otherwise.Status
	}
	return &other
}

// Error returns code and detail.
func (p *Problem) Error() string { return "httpidem: " + p.Code + ": " + cmp.Or(p.Detail, p.Title) }

// MarshalJSON returns the body of the answer: problem details (RFC 9457) with the additional members code and, if it
// is set, original_status.
func (p *Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Type           string `json:"type"`
		Title          string `json:"title"`
		Status         int    `json:"status"`
		Detail         string `json:"detail,omitempty"`
		Code           string `json:"code"`
		OriginalStatus int    `json:"original_status,omitempty"`
	}{cmp.Or(p.Type, "about:blank"), cmp.Or(p.Title, http.StatusText(p.Status)), p.Status, p.Detail, p.Code, p.OriginalStatus})
}

// Header returns the fields that a client acts on, whoever writes the body: Retry-After, and Link to what explains
// the answer. It has a new map each time.
func (p *Problem) Header() http.Header {
	h := make(http.Header)
	if p.RetryAfter > 0 {
		// Rounded up, so that a client which obeys does not come too early.
		seconds := (p.RetryAfter-1)/time.Second + 1
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	if docs, _, _ := strings.Cut(p.Type, "#"); docs != "" {
		h.Set("Link", "<"+docs+`>; rel="describedby"`)
	}
	return h
}

// ServeHTTP writes the problem as application/problem+json. An ErrorHandler may call it for what it doesn't write
// itself.
func (p *Problem) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // strings and numbers can always be marshalled, invalid UTF-8 included
	}
	w.Header().Set("Content-Type", "application/problem+json")
	p.setHeader(w.Header())
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
}

// setHeader sets the fields of Header, beside a Link that is there. It may be called twice.
func (p *Problem) setHeader(h http.Header) {
	for name, values := range p.Header() {
		if name != "Link" {
			h[name] = values
		} else if !slices.Contains(h[name], values[0]) {
			h.Add(name, values[0])
		}
	}
}
