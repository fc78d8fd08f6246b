package httpidem_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

func TestFingerprintIsMethodPathQueryAndBody(t *testing.T) {
	var store keyStore
	h := guardWith(t, &store, httpidem.Config{})(http.NotFoundHandler())
	r := httptest.NewRequest(http.MethodPut, "/a%2Fb?x=1&y=2", strings.NewReader("body"))
	r.Header.Set(httpidem.DefaultHeader, "k")
	h.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, idem.FingerprintOf([]byte("PUT"), []byte("/a%2Fb"), []byte("x=1&y=2"), []byte("body")), store.requests[0].Fingerprint)
}

func TestOtherRequestUnderTheKeyIsRefused(t *testing.T) {
	first := [3]string{http.MethodPost, "/payments?dry_run=1", "body"}
	runs := 0
	h := guard(t, httpidem.Config{})(counted(&runs, status(201, "answer")))
	send := func(request [3]string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(request[0], request[1], strings.NewReader(request[2]))
		r.Header.Set(httpidem.DefaultHeader, "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	require.Equal(t, 201, send(first).Code)
	for name, other := range map[string][3]string{
		"method":     {http.MethodPut, first[1], first[2]},
		"path":       {first[0], "/payments/?dry_run=1", first[2]},
		"query":      {first[0], "/payments", first[2]},
		"body":       {first[0], first[1], "bodY"},
		"no body":    {first[0], first[1], ""},
		"other cut":  {first[0], "/payments?dry_run=", "1body"},
		"escaping":   {first[0], "/p%61yments%2F?dry_run=1", first[2]},
		"longer":     {first[0], first[1], "body "},
		"big prefix": {first[0], first[1], "body" + strings.Repeat("x", 1<<20-4)},
	} {
		t.Run(name, func(t *testing.T) {
			requireProblem(t, send(other), 422, httpidem.CodeKeyReused)
		})
	}
	requireReplayed(t, send(first), 201, "answer")
	require.Equal(t, 1, runs)
}

func TestFingerprintOfTheUser(t *testing.T) {
	t.Run("decides", func(t *testing.T) {
		h := guard(t, httpidem.Config{Fingerprint: func(_ *http.Request, body []byte) (idem.Fingerprint, error) {
			return idem.FingerprintOf(body[:1]), nil
		}})(status(201, ""))
		require.Equal(t, 201, post(t, h, "k", "ab").Code)
		requireReplayed(t, post(t, h, "k", "ac"), 201, "")
		requireProblem(t, post(t, h, "k", "bc"), 422, httpidem.CodeKeyReused)
	})
	t.Run("refuses", func(t *testing.T) {
		for _, test := range []struct {
			err    error
			status int
			code   string
		}{
			{errors.New("secret"), 400, httpidem.CodeRequestInvalid},
			{fmt.Errorf("wrapped: %w", &httpidem.Problem{Status: 415, Code: "only_xml"}), 415, "only_xml"},
		} {
			runs := 0
			h := guard(t, httpidem.Config{Fingerprint: func(*http.Request, []byte) (idem.Fingerprint, error) {
				return idem.Fingerprint{}, test.err
			}})(counted(&runs, status(201, "")))
			w := post(t, h, "k", "")
			requireProblem(t, w, test.status, test.code)
			require.NotContains(t, w.Body.String(), "secret")
			require.Zero(t, runs)
		}
	})
}

// fingerprintJSON returns FingerprintJSON of a body.
func fingerprintJSON(body string) (idem.Fingerprint, error) {
	return httpidem.FingerprintJSON(httptest.NewRequest(http.MethodPost, "/x", http.NoBody), []byte(body))
}

func TestFingerprintJSONOfEqualTexts(t *testing.T) {
	for name, texts := range map[string][]string{
		"spaces":         {`{"a":1,"b":2}`, `{ "a" : 1 , "b" : 2 }`, "\t{\"a\":1,\r\n\"b\":2}\n"},
		"order":          {`{"a":1,"b":{"c":2,"d":[3]}}`, `{"b":{"d":[3],"c":2},"a":1}`},
		"order by names": {`{"a":1,"a\u0000":2,"ab":3}`, `{"ab":3,"a\u0000":2,"a":1}`},
		"escapes":        {`"\u0041\/\u00e9\ud83d\ude00\n\u0022"`, `"A/é😀\u000a\""`, `"A\/é\uD83D\uDE00\n\""`},
		"literals":       {`[true,false,null]`, `[ true, false, null ]`},
		"numbers":        {`[-1.50e+3,0,12,0.1,1E5]`, ` [ -1.50e+3 ,0,12 ,0.1,1E5 ] `},
		"empty":          {`[{},[],""]`, ` [ { } , [ ] , "" ] `},
		"nothing":        {``},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := fingerprintJSON(texts[0])
			require.NoError(t, err)
			for _, text := range texts[1:] {
				got, err := fingerprintJSON(text)
				require.NoError(t, err)
				require.Equal(t, want, got, text)
			}
		})
	}
}

func TestFingerprintJSONOfDifferentTexts(t *testing.T) {
	texts := []string{
		``, `null`, `0`, `-0`, `1`, `1.0`, `1.00`, `1e0`, `10e-1`, `"1"`, `true`, `"true"`, `""`, `[]`, `{}`, `[null]`, `[[]]`, `[1,2]`, `[2,1]`, `[12]`,
		`{"a":1}`, `{"A":1}`, `{"a":"1"}`, `{"a":1,"b":1}`, `{"ab":1}`, `{"a":{"b":1}}`, `["a",1]`, `"a,b"`, `["a","b"]`, `"é"`, `"e\u0301"`, `"\ufffd"`,
		`9007199254740993`, `9007199254740992`, `"\u0000"`, `"\\u0000"`, `"ſ"`, `"s"`, `{"\"a":1}`, `{"\\a":1}`, `"<"`, `"\u2028"`,
	}
	seen := map[idem.Fingerprint]string{}
	for _, text := range texts {
		got, err := fingerprintJSON(text)
		require.NoError(t, err, text)
		require.NotContains(t, seen, got, text)
		seen[got] = text
	}
}

func TestFingerprintJSONRefuses(t *testing.T) {
	for name, body := range map[string]string{
		"no JSON":               `hello`,
		"only spaces":           `  `,
		"two texts":             `1 2`,
		"NUL at the end":        "1\x00",
		"NUL":                   "\x00",
		"byte order mark":       "\ufeff1",
		"half an object":        `{"a":1`,
		"half a member":         `{"a"`,
		"no value":              `{"a":}`,
		"no name":               `{1:2}`,
		"comma at the end":      `{"a":1,}`,
		"comma in front":        `[,1]`,
		"no comma":              `[1 2]`,
		"half a string":         `"a`,
		"half an escape":        `"a\`,
		"unknown escape":        `"\x"`,
		"short escape":          `"\u12"`,
		"escape with a sign":    `"\u+123"`,
		"control character":     "\"a\nb\"",
		"leading zero":          `01`,
		"no digits":             `-`,
		"point at the end":      `1.`,
		"point in front":        `.5`,
		"exponent at the end":   `1e`,
		"plus":                  `+1`,
		"half a literal":        `tru`,
		"literal in capitals":   `True`,
		"two names":             `{"a":1,"a":2}`,
		"two names and escapes": `{"a":1,"b":0,"\u0061":2}`,
		"two names, nested":     `[{"x":{"a":1,"a":1}}]`,
		"invalid UTF-8":         "\"\xff\"",
		"high surrogate":        `"\ud83d"`,
		"low surrogate":         `"\ude00"`,
		"swapped surrogates":    `"\ude00\ud83d"`,
		"surrogate and letter":  `"\ud83d\u0041"`,
		"too deep":              strings.Repeat("[", 66) + strings.Repeat("]", 66),
		"far too deep":          strings.Repeat(`{"a":`, 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fingerprintJSON(body)
			var p *httpidem.Problem
			require.ErrorAs(t, err, &p)
			require.Equal(t, 400, p.Status)
			require.Equal(t, httpidem.CodeRequestInvalid, p.Code)
		})
	}
	_, err := fingerprintJSON(strings.Repeat("[", 65) + strings.Repeat("]", 65))
	require.NoError(t, err, "64 levels below the outermost")
}

func TestFingerprintJSONReplays(t *testing.T) {
	runs := 0
	h := guard(t, httpidem.Config{Fingerprint: httpidem.FingerprintJSON})(counted(&runs, status(201, "")))
	require.Equal(t, 201, post(t, h, "k", `{"a":1,"b":2}`).Code)
	requireReplayed(t, post(t, h, "k", `{ "b":2, "a":1 }`), 201, "")
	requireProblem(t, post(t, h, "k", `{"b":2,"a":1.0}`), 422, httpidem.CodeKeyReused)
	requireProblem(t, post(t, h, "k", `{"b":2,"b":2}`), 400, httpidem.CodeRequestInvalid)
	require.Equal(t, 1, runs)
}

// FuzzFingerprintJSON compares it with encoding/json: what it takes is JSON, and texts that encoding/json
// reads as different values have different fingerprints, for which each text is paired with itself after
// a round trip.
func FuzzFingerprintJSON(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[1.0,"\u0041"]}`, `"\ud83d\ude00"`, `[]`, `1e5`, `{"a":1,"a":2}`, `{"a\u0000":1,"a":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := fingerprintJSON(string(body))
		if err != nil || len(body) == 0 {
			return
		}
		require.True(t, json.Valid(body), "it took what is no JSON")
		var value any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		require.NoError(t, d.Decode(&value))
		compact, err := json.Marshal(value) // sorts members and changes escapes
		require.NoError(t, err)
		again, err := fingerprintJSON(string(compact))
		require.NoError(t, err)
		require.Equal(t, got, again)

		other, err := fingerprintJSON("[" + string(body) + "]")
		if err == nil {
			require.NotEqual(t, got, other)
		}
	})
}

func TestFingerprintJSONIsOfMethodPathAndQueryToo(t *testing.T) {
	seen := map[idem.Fingerprint]string{}
	for _, target := range []string{"/a", "/b", "/a?x=1", "/a?x=2", "/a%2Fb", "/a/b"} {
		for _, method := range []string{http.MethodPost, http.MethodPut} {
			got, err := httpidem.FingerprintJSON(httptest.NewRequest(method, target, http.NoBody), []byte(`{}`))
			require.NoError(t, err)
			require.NotContains(t, seen, got, target)
			seen[got] = target
		}
	}
}
