package httpidem_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

func TestProblems(t *testing.T) {
	for _, test := range httpcases.Answers {
		t.Run(test.Name, func(t *testing.T) {
			send := func(conf httpidem.Config) *httptest.ResponseRecorder {
				conf.MaxRequestBytes = 10
				runs := 0
				h := guardWith(t, httpcases.OutcomeStore{Outcome: test.Outcome, Err: test.Err}, conf)(counted(&runs, status(200, "")))
				r := newRequest(t.Context(), "", test.Body)
				r.Header[httpidem.DefaultHeader] = test.Keys
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Zero(t, runs)
				require.Equal(t, test.RetryAfter, w.Header().Get("Retry-After"))
				return w
			}
			plain := send(httpidem.Config{})
			members := requireProblem(t, plain, test.Status, test.Code)
			require.Equal(t, "about:blank", members["type"])
			require.NotEmpty(t, members["detail"])
			require.Empty(t, plain.Header().Get("Link"))
			if test.Original != 0 {
				require.EqualValues(t, test.Original, members["original_status"])
			} else {
				require.NotContains(t, members, "original_status")
			}

			documented := send(httpidem.Config{DocsURL: "https://docs.example/keys"})
			require.Equal(t, `<https://docs.example/keys>; rel="describedby"`, documented.Header().Get("Link"))
			require.Equal(t, "https://docs.example/keys#"+test.Code, requireProblem(t, documented, test.Status, test.Code)["type"])

			own := send(httpidem.Config{DocsURL: "https://docs.example/keys", ErrorHandler: func(w http.ResponseWriter, r *http.Request, p *httpidem.Problem) {
				require.Equal(t, "/payments", r.URL.Path)
				require.Equal(t, test.Original, p.OriginalStatus)
				w.WriteHeader(p.Status)
				require.NoError(t, json.NewEncoder(w).Encode(map[string]string{"error": p.Code}))
			}})
			require.Equal(t, test.Status, own.Code)
			require.JSONEq(t, `{"error":"`+test.Code+`"}`, own.Body.String())
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
		Scope:    func(*http.Request) (string, error) { return "", httpcases.ErrDown },
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
	_, err = httpidem.New(engine, httpidem.Config{Scope: httpidem.SharedScope, MaxRun: -time.Second})
	require.ErrorContains(t, err, "Config.MaxRun is -1s, want zero or more")
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
