package httpidem_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

func TestTransportRepeatsWhatMayHelp(t *testing.T) {
	const attempts = 4
	for _, row := range []struct {
		name   string
		answer reply
		want   int
	}{
		{"success", replies(200), 1},
		{"created", replies(201), 1},
		{"redirect", replies(307), 1},
		{"bad request", replies(400), 1},
		{"unauthorized", replies(401), 1},
		{"not found", replies(404), 1},
		{"gone", repliesBody(410, `{"code":"response_not_retained"}`, asProblem), 1},
		{"key reused", repliesBody(422, `{"code":"key_reused"}`, asProblem), 1},
		{"too early", replies(425), attempts},
		{"too many requests", replies(429), attempts},
		{"internal error", replies(500), 1},
		{"501", replies(501), 1},
		{"bad gateway", replies(502), attempts},
		{"unavailable", replies(503), attempts},
		{"gateway timeout", replies(504), attempts},
		{"conflict in progress", repliesBody(409, `{"code":"in_progress"}`, asProblem), attempts},
		{"conflict in progress, parameters", repliesBody(409, `{"code":"in_progress"}`, "Content-Type: Application/Problem+JSON; charset=utf-8"), attempts},
		{"conflict unknown", repliesBody(409, `{"code":"outcome_unknown"}`, asProblem), 1},
		{"conflict with Retry-After only", replies(409, "Retry-After: 1"), 1},
		{"conflict, other media type", repliesBody(409, `{"code":"in_progress"}`, "Content-Type: application/json"), 1},
		{"conflict, no media type", repliesBody(409, `{"code":"in_progress"}`), 1},
		{"conflict, no JSON", repliesBody(409, `in_progress`, asProblem), 1},
		{"conflict, code no string", repliesBody(409, `{"code":["in_progress"]}`, asProblem), 1},
		{"in progress but no conflict", repliesBody(400, `{"code":"in_progress"}`, asProblem), 1},
		{"error", cutOff, attempts},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := newScript(row.answer)
				resp, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, onlyReader("x")))
				require.Len(t, base.sent, row.want)
				require.Len(t, base.keys(), 1)
				if row.name == "error" {
					require.Nil(t, resp)
					require.ErrorIs(t, err, errCut)
					return
				}
				require.NoError(t, err, "the last answer is an answer")
				want, err := trip(row.answer, nil)
				require.NoError(t, err)
				require.Equal(t, want.status, resp.status)
				require.Equal(t, want.body, resp.body, "the caller reads what the Transport read")
			})
		})
	}
}

func TestTransportHandsBackAConflict(t *testing.T) {
	conflict := func(body io.Reader) (*result, error) {
		base := newScript(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: io.NopCloser(body)}, nil
		})
		return trip((&httpidem.Transport{Base: base, MaxBackoff: 1}).RoundTrip, scriptPost(t, nil))
	}
	t.Run("that is longer than what is looked at", func(t *testing.T) {
		long := `{"code":"in_progress","detail":"` + strings.Repeat("x", 1<<20) + `"}`
		resp, err := conflict(strings.NewReader(long))
		require.NoError(t, err)
		require.Equal(t, long, resp.body)
	})
	t.Run("that breaks off", func(t *testing.T) {
		resp, err := conflict(io.MultiReader(strings.NewReader(`{"code":`), iotest.ErrReader(errCut)))
		require.ErrorIs(t, err, errCut)
		require.Equal(t, `{"code":`, resp.body)
	})
}

// stalled is a Base whose answer is a 409 that has its header, and a body for the test to write.
func stalled() (*script, *io.PipeWriter) {
	body, w := io.Pipe()
	return newScript(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: body}, nil
	}), w
}

// TestTransportDoesNotWaitForAConflict has documents that come late or never. A bubble does not end while
// a goroutine of the Transport is left in it.
func TestTransportDoesNotWaitForAConflict(t *testing.T) {
	const document = `{"code":"in_progress"}`
	t.Run("but hands it back whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, w := stalled()
			go func() {
				_, _ = io.WriteString(w, document[:9])
				time.Sleep(time.Minute)
				_, _ = io.WriteString(w, document[9:]+strings.Repeat(" ", 1<<20))
				_ = w.CloseWithError(errCut)
			}()
			start := time.Now()
			resp, err := (&httpidem.Transport{Base: base, AttemptTimeout: time.Second}).RoundTrip(scriptPost(t, nil))
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(start), 5*time.Second)
			require.Equal(t, 409, resp.StatusCode)
			body, err := io.ReadAll(resp.Body)
			require.ErrorIs(t, err, errCut)
			require.True(t, strings.HasPrefix(string(body), document), "as it was sent") // and no JSON that means the same
			require.Len(t, body, len(document)+1<<20)
			require.Len(t, base.sent, 1)
			require.NoError(t, resp.Body.Close())
		})
	})
	t.Run("and leaves nothing behind when it is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, _ := stalled()
			resp, err := (&httpidem.Transport{Base: base}).RoundTrip(scriptPost(t, nil))
			require.NoError(t, err)
			time.AfterFunc(time.Hour, func() { _ = resp.Body.Close() })
			_, err = io.ReadAll(resp.Body)
			require.ErrorIs(t, err, io.ErrClosedPipe)
		})
	})
	t.Run("unless it comes in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, w := stalled()
			base.answers = append(base.answers, replies(201))
			go func() {
				time.Sleep(900 * time.Millisecond)
				_, _ = io.WriteString(w, document)
				_ = w.Close()
			}()
			resp, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			require.Equal(t, 201, resp.status)
		})
	})
	t.Run("at all when there is no other attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, _ := stalled()
			start := time.Now()
			resp, err := (&httpidem.Transport{Base: base, MaxAttempts: 1}).RoundTrip(scriptPost(t, nil))
			require.NoError(t, err)
			require.Zero(t, time.Since(start))
			require.NoError(t, resp.Body.Close())
		})
	})
}

func TestTransportBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounds := []time.Duration{100, 200, 400, 500, 500, 500}
		longest := make([]time.Duration, len(bounds))
		shortest := time.Hour
		for range 200 {
			base := newScript(replies(503))
			tr := &httpidem.Transport{Base: base, MaxAttempts: 7, MinBackoff: 100, MaxBackoff: 500}
			_, err := trip(tr.RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			for i, wait := range base.waits() {
				require.Less(t, wait, bounds[i])
				longest[i], shortest = max(longest[i], wait), min(shortest, wait)
			}
		}
		require.Less(t, shortest, time.Duration(20), "full jitter begins at zero")
		for i := range bounds {
			require.Greater(t, longest[i], bounds[i]*3/4, "and goes up to the bound of attempt %d", i+2)
		}
	})
	t.Run("by default within 100, 200 and 400 ms", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(cutOff)
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil))
			require.ErrorIs(t, err, errCut)
			require.Len(t, base.waits(), 3)
			for i, wait := range base.waits() {
				require.Less(t, wait, 100*time.Millisecond<<i)
			}
		})
	})
	t.Run("without overflow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(replies(503, "Retry-After: 99999999999"))
			tr := &httpidem.Transport{Base: base, MaxAttempts: 70, MinBackoff: time.Hour, MaxBackoff: 1<<63 - 1, MaxRetryAfter: 1<<63 - 1}
			ctx, cancel := context.WithTimeout(t.Context(), 24*365*time.Hour)
			defer cancel()
			_, err := trip(tr.RoundTrip, scriptPost(t, nil).WithContext(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Len(t, base.sent, 1, "centuries are not over in no time")
		})
	})
}

func TestTransportObeysRetryAfter(t *testing.T) {
	const longest = 60 * time.Second
	for _, row := range []struct {
		name   string
		fields []string
		want   time.Duration
	}{
		{"absent", nil, 0},
		{"seconds", []string{"Retry-After: 7"}, 7 * time.Second},
		{"zero", []string{"Retry-After: 0"}, 0},
		{"above the cap", []string{"Retry-After: 86400"}, longest},
		{"above any number", []string{"Retry-After: 99999999999999999999999"}, longest},
		{"negative", []string{"Retry-After: -5"}, 0},
		{"fraction", []string{"Retry-After: 1.5"}, 0},
		{"words", []string{"Retry-After: soon"}, 0},
		// A bubble begins at midnight UTC 2000-01-01, a Saturday.
		{"date", []string{"Retry-After: Sat, 01 Jan 2000 00:00:09 GMT"}, 9 * time.Second},
		{"date of a server with another clock", []string{"Retry-After: Sun, 06 Nov 1994 08:49:42 GMT", "Date: Sun, 06 Nov 1994 08:49:37 GMT"}, 5 * time.Second},
		{"date above the cap", []string{"Retry-After: Sun, 01 Jan 2090 00:00:00 GMT"}, longest},
		{"date in the past", []string{"Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"}, 0},
	} {
		for _, code := range []int{409, 425, 429, 502, 503, 504} {
			t.Run(fmt.Sprint(row.name, " ", code), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const jitter = 50 * time.Millisecond
					base := newScript(repliesBody(code, `{"code":"in_progress"}`, append(row.fields, asProblem)...), replies(201))
					tr := &httpidem.Transport{Base: base, MaxBackoff: jitter, MaxRetryAfter: longest}
					_, err := trip(tr.RoundTrip, scriptPost(t, nil))
					require.NoError(t, err)
					require.Len(t, base.sent, 2)
					require.GreaterOrEqual(t, base.waits()[0], row.want)
					require.Less(t, base.waits()[0], row.want+jitter)
				})
			})
		}
	}
	t.Run("and backs off all the same when its date is past", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(replies(503, "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"))
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			require.Positive(t, base.waits()[0]+base.waits()[1]+base.waits()[2])
		})
	})
	t.Run("for 10 s by default", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(replies(503, "Retry-After: 3600"), replies(200))
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			require.InDelta(t, 10.05, base.waits()[0].Seconds(), 0.05)
		})
	})
}

func TestTransportDoesNotRepeatToAServerWithoutTLS(t *testing.T) {
	base := newScript(func(*http.Request) (*http.Response, error) { return nil, tls.RecordHeaderError{Msg: "no TLS"} })
	_, err := trip((&httpidem.Transport{Base: base, MaxBackoff: 1}).RoundTrip, scriptPost(t, nil))
	require.Equal(t, 1, asRetryError(t, err).Attempts)
}

func TestTransportLeavesNothingOfAnAttemptThatFailed(t *testing.T) {
	base := newScript(cutOff)
	_, err := trip((&httpidem.Transport{Base: base, MaxAttempts: 1, AttemptTimeout: time.Minute}).RoundTrip, scriptPost(t, nil))
	require.ErrorIs(t, err, errCut)
	require.Error(t, base.sent[0].req.Context().Err(), "released with the attempt")
}
