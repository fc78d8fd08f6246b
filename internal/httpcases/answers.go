package httpcases

import (
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// Answers are the answers of the middleware's own, by what leads to them.
var Answers = []struct {
	Name       string
	Outcome    idem.Outcome
	Err        error
	Keys       []string
	Body       string
	Status     int
	Code       string
	RetryAfter string
	Original   int
}{
	{Name: "no key", Keys: nil, Status: 400, Code: "key_missing"},
	{Name: "malformed key", Keys: []string{"a b"}, Status: 400, Code: "key_invalid"},
	{Name: "two keys", Keys: []string{"a", "b"}, Status: 400, Code: "key_invalid"},
	{Name: "key that the store does not take", Keys: []string{"k"}, Err: idem.ErrKey, Status: 400, Code: "key_invalid"},
	{Name: "large body", Keys: []string{"k"}, Body: "12345678901", Status: 413, Code: "request_too_large"},
	{Name: "other request", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Mismatch}, Status: 422, Code: "key_reused"},
	{Name: "in progress, 1 ns left", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.InProgress, Remaining: 1},
		Status: 409, Code: "in_progress", RetryAfter: "1"},
	{Name: "in progress, 1 s left", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.InProgress, Remaining: time.Second},
		Status: 409, Code: "in_progress", RetryAfter: "1"},
	{Name: "in progress, a little more than 1 s left", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.InProgress, Remaining: time.Second + 1},
		Status: 409, Code: "in_progress", RetryAfter: "2"},
	{Name: "in progress, nobody knows how long", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.InProgress},
		Status: 409, Code: "in_progress", RetryAfter: "1"},
	{Name: "in progress, for ever", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.InProgress, Remaining: 1<<63 - 1},
		Status: 409, Code: "in_progress", RetryAfter: "9223372037"},
	{Name: "unknown", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Unknown}, Status: 409, Code: "outcome_unknown"},
	{Name: "held", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 504, Failed: true, Truncated: true}},
		Status: 409, Code: "outcome_unknown"},
	{Name: "state of a later version", Keys: []string{"k"}, Outcome: idem.Outcome{State: 99}, Status: 409, Code: "outcome_unknown"},
	{Name: "not kept", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 201, Truncated: true}},
		Status: 410, Code: "response_not_retained", Original: 201},
	{Name: "handed over", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 101, Truncated: true}},
		Status: 410, Code: "response_not_retained", Original: 101},
	{Name: "no status of HTTP", Keys: []string{"k"}, Outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 7}},
		Status: 410, Code: "response_not_retained", Original: 7},
	{Name: "store down", Keys: []string{"k"}, Err: ErrDown, Status: 503, Code: "store_unavailable", RetryAfter: "1"},
	{Name: "store full", Keys: []string{"k"}, Err: idem.ErrFull, Status: 503, Code: "store_unavailable", RetryAfter: "1"},
	{Name: "store closed", Keys: []string{"k"}, Err: idem.ErrClosed, Status: 503, Code: "store_unavailable", RetryAfter: "1"},
}
