package httpidem_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// outcomeStore answers every Begin alike.
type outcomeStore struct {
	idem.Store
	outcome idem.Outcome
	err     error
}

func (s outcomeStore) Begin(context.Context, idem.Request) (idem.Outcome, error) {
	return s.outcome, s.err
}

// problemCases are the answers of the middleware's own, by what leads to them.
var problemCases = []struct {
	name       string
	outcome    idem.Outcome
	err        error
	keys       []string
	body       string
	status     int
	code       string
	retryAfter string
	original   int
}{
	{name: "no key", keys: nil, status: 400, code: "key_missing"},
	{name: "malformed key", keys: []string{"a b"}, status: 400, code: "key_invalid"},
	{name: "two keys", keys: []string{"a", "b"}, status: 400, code: "key_invalid"},
	{name: "key that the store does not take", keys: []string{"k"}, err: idem.ErrKey, status: 400, code: "key_invalid"},
	{name: "large body", keys: []string{"k"}, body: "12345678901", status: 413, code: "request_too_large"},
	{name: "other request", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Mismatch}, status: 422, code: "key_reused"},
	{name: "in progress, 1 ns left", keys: []string{"k"}, outcome: idem.Outcome{State: idem.InProgress, Remaining: 1},
		status: 409, code: "in_progress", retryAfter: "1"},
	{name: "in progress, 1 s left", keys: []string{"k"}, outcome: idem.Outcome{State: idem.InProgress, Remaining: time.Second},
		status: 409, code: "in_progress", retryAfter: "1"},
	{name: "in progress, a little more than 1 s left", keys: []string{"k"}, outcome: idem.Outcome{State: idem.InProgress, Remaining: time.Second + 1},
		status: 409, code: "in_progress", retryAfter: "2"},
	{name: "in progress, nobody knows how long", keys: []string{"k"}, outcome: idem.Outcome{State: idem.InProgress},
		status: 409, code: "in_progress", retryAfter: "1"},
	{name: "in progress, for ever", keys: []string{"k"}, outcome: idem.Outcome{State: idem.InProgress, Remaining: 1<<63 - 1},
		status: 409, code: "in_progress", retryAfter: "9223372037"},
	{name: "unknown", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Unknown}, status: 409, code: "outcome_unknown"},
	{name: "held", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 504, Failed: true, Truncated: true}},
		status: 409, code: "outcome_unknown"},
	{name: "state of a later version", keys: []string{"k"}, outcome: idem.Outcome{State: 99}, status: 409, code: "outcome_unknown"},
	{name: "not kept", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 201, Truncated: true}},
		status: 410, code: "response_not_retained", original: 201},
	{name: "handed over", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 101, Truncated: true}},
		status: 410, code: "response_not_retained", original: 101},
	{name: "no status of HTTP", keys: []string{"k"}, outcome: idem.Outcome{State: idem.Replay, Response: idem.Response{Status: 7}},
		status: 410, code: "response_not_retained", original: 7},
	{name: "store down", keys: []string{"k"}, err: errDown, status: 503, code: "store_unavailable", retryAfter: "1"},
	{name: "store full", keys: []string{"k"}, err: idem.ErrFull, status: 503, code: "store_unavailable", retryAfter: "1"},
	{name: "store closed", keys: []string{"k"}, err: idem.ErrClosed, status: 503, code: "store_unavailable", retryAfter: "1"},
}

func TestProblems(t *testing.T) {
	for _, test := range problemCases {
		t.Run(test.name, func(t *testing.T) {
			send := func(conf httpidem.Config) *httptest.ResponseRecorder {
				conf.MaxRequestBytes = 10
				runs := 0
				h := guardWith(t, outcomeStore{outcome: test.outcome, err: test.err}, conf)(counted(&runs, status(200, "")))
				r := newRequest(t.Context(), "", test.body)
				r.Header[httpidem.DefaultHeader] = test.keys
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Zero(t, runs)
				require.Equal(t, test.retryAfter, w.Header().Get("Retry-After"))
				return w
			}
			plain := send(httpidem.Config{})
			members := requireProblem(t, plain, test.status, test.code)
			require.Equal(t, "about:blank", members["type"])
			require.NotEmpty(t, members["detail"])
			require.Empty(t, plain.Header().Get("Link"))
			if test.original != 0 {
				require.EqualValues(t, test.original, members["original_status"])
			} else {
				require.NotContains(t, members, "original_status")
			}

			documented := send(httpidem.Config{DocsURL: "https://docs.example/keys"})
			require.Equal(t, `<https://docs.example/keys>; rel="describedby"`, documented.Header().Get("Link"))
			require.Equal(t, "https://docs.example/keys#"+test.code, requireProblem(t, documented, test.status, test.code)["type"])

			own := send(httpidem.Config{DocsURL: "https://docs.example/keys", ErrorHandler: func(w http.ResponseWriter, r *http.Request, p *httpidem.Problem) {
				require.Equal(t, "/payments", r.URL.Path)
				require.Equal(t, test.original, p.OriginalStatus)
				w.WriteHeader(p.Status)
				require.NoError(t, json.NewEncoder(w).Encode(map[string]string{"error": p.Code}))
			}})
			require.Equal(t, test.status, own.Code)
			require.JSONEq(t, `{"error":"`+test.code+`"}`, own.Body.String())
			require.NotEmpty(t, own.Header().Get("Link"))
		})
	}
}

func TestErrorHandlerMayWriteTheProblem(t *testing.T) {
	h := guard(t, httpidem.Config{DocsURL: "https://docs.example/keys", ErrorHandler: func(w http.ResponseWriter, r *http.Request, p *httpidem.Problem) {
		p.ServeHTTP(w, r)
	}})(status(200, ""))
	w := post(t, h, "", "")
	requireProblem(t, w, 400, httpidem.CodeKeyInvalid)
	require.Len(t, w.Header().Values("Link"), 1)
}

func TestProblemOfAFunctionIsNotChanged(t *testing.T) {
	shared := &httpidem.Problem{Status: 403, Code: "no"}
	h := guard(t, httpidem.Config{
		DocsURL: "https://docs.example",
		Scope:   func(*http.Request) (string, error) { return "", shared },
	})(status(200, ""))
	members := requireProblem(t, post(t, h, "k", ""), 403, "no")
	require.Equal(t, "Forbidden", members["title"])
	require.Equal(t, &httpidem.Problem{Status: 403, Code: "no"}, shared)
	require.EqualError(t, shared, "httpidem: no: ")
}

// A status that can't be an answer's is replaced by the one that any other error stands for.
func TestProblemWithoutAStatus(t *testing.T) {
	for _, status := range []int{0, -1, 42, 103, 1000} {
		bad := &httpidem.Problem{Status: status, Code: "nobody"}
		scope := guard(t, httpidem.Config{Scope: func(*http.Request) (string, error) { return "", bad }})(http.NotFoundHandler())
		requireProblem(t, post(t, scope, "k", ""), 401, "nobody")
		fingerprint := guard(t, httpidem.Config{Fingerprint: func(*http.Request, []byte) (idem.Fingerprint, error) {
			return idem.Fingerprint{}, bad
		}})(http.NotFoundHandler())
		requireProblem(t, post(t, fingerprint, "k", ""), 400, "nobody")
	}
}

func TestOptional(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{
		Optional: true,
		Scope:    func(*http.Request) (string, error) { return "", errDown },
	})(counted(&runs, status(201, "")))
	r := newRequest(t.Context(), "", "body")
	r.Header.Del(httpidem.DefaultHeader)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, 201, w.Code)
	requireProblem(t, post(t, h, "", ""), 400, httpidem.CodeKeyInvalid)
	requireProblem(t, post(t, h, "k", ""), 401, httpidem.CodeScopeUnknown)
	require.Equal(t, 1, runs)
}

func TestNewRefusesBadConfig(t *testing.T) {
	engine := newEngine(t, idem.Config{})
	for name, conf := range map[string]httpidem.Config{
		"no scope":                  {},
		"negative MaxRequestBytes":  {Scope: httpidem.SharedScope, MaxRequestBytes: -1},
		"negative MaxResponseBytes": {Scope: httpidem.SharedScope, MaxResponseBytes: -1},
		"negative Wait":             {Scope: httpidem.SharedScope, Wait: -1},
		"negative MaxRun":           {Scope: httpidem.SharedScope, MaxRun: -1},
		"Header with a space":       {Scope: httpidem.SharedScope, Header: "a b"},
		"Header with a colon":       {Scope: httpidem.SharedScope, Header: "a:"},
		"relative DocsURL":          {Scope: httpidem.SharedScope, DocsURL: "/docs"},
		"DocsURL with a fragment":   {Scope: httpidem.SharedScope, DocsURL: "https://docs.example#x"},
		"DocsURL with a bracket":    {Scope: httpidem.SharedScope, DocsURL: "https://docs.example/>"},
		"DocsURL with a newline":    {Scope: httpidem.SharedScope, DocsURL: "https://docs.example/\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := httpidem.New(engine, conf)
			require.ErrorContains(t, err, "httpidem: Config.")
		})
	}
	_, err := httpidem.New(nil, httpidem.Config{Scope: httpidem.SharedScope})
	require.ErrorContains(t, err, "no store")
}

// A middleware of one's own has the same answers.
func TestNewProblem(t *testing.T) {
	for code, status := range map[string]int{
		httpidem.CodeKeyMissing: 400, httpidem.CodeKeyInvalid: 400, httpidem.CodeRequestInvalid: 400, httpidem.CodeScopeUnknown: 401,
		httpidem.CodeInProgress: 409, httpidem.CodeOutcomeUnknown: 409, httpidem.CodeResponseNotRetained: 410,
		httpidem.CodeRequestTooLarge: 413, httpidem.CodeKeyReused: 422, httpidem.CodeStoreUnavailable: 503, "another": 500,
	} {
		p := httpidem.NewProblem(code)
		require.Equal(t, status, p.Status, code)
		require.Equal(t, code, p.Code)
		p.Detail = "changed"
		require.NotEqual(t, "changed", httpidem.NewProblem(code).Detail, "a problem is its caller's")
	}
}

func TestProblemInParts(t *testing.T) {
	p := httpidem.ProblemFor(&idem.Outcome{State: idem.InProgress, Remaining: 1500 * time.Millisecond})
	p.Type = "https://docs.example/keys#in_progress"
	require.Equal(t, http.Header{
		"Retry-After": {"2"}, "Link": {`<https://docs.example/keys>; rel="describedby"`},
	}, p.Header())
	body, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"https://docs.example/keys#in_progress","title":"Request in progress","status":409,
		"detail":"The first request with this key has not been answered yet.","code":"in_progress"}`, string(body))
	w := httptest.NewRecorder()
	p.ServeHTTP(w, nil)
	require.Equal(t, string(body)+"\n", w.Body.String())
}
