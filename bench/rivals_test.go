package bench_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRivalsAnswer tells that every subject does what is measured: a guarded handler runs once per key, and
// its answer is repeated in full; an unguarded one runs every time.
func TestRivalsAnswer(t *testing.T) {
	for _, subject := range subjects {
		again := int64(0) // how often the handler runs for a request that was answered before
		if !subject.guarded {
			again = 1
		}
		t.Run(subject.name, func(t *testing.T) {
			t.Run("over HTTP", func(t *testing.T) {
				s := subject.start(t, replayTTL)
				defer s.close(t)
				testOverHTTP(t, s, again)
			})
			t.Run("in process", func(t *testing.T) {
				s := subject.start(t, replayTTL)
				defer s.close(t)
				testInProcess(t, s, again)
			})
		})
	}
}

func testOverHTTP(t *testing.T, s service, again int64) {
	address := s.listen(t)
	raw := dial(t, address)
	defer raw.close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()

	key := newKey()
	post := func(number int) {
		setKey(key, number)
		status, header, body := roundTrip(t, transport, "http://"+address+path, string(key))
		require.NoError(t, checkAnswer(key, status, body))
		require.Equal(t, []string{contentType}, header["Content-Type"])
		require.Equal(t, []string{location}, header["Location"])
	}
	post(1)
	require.EqualValues(t, 1, s.runs(), "a fresh request")
	post(1)
	require.Equal(t, 1+again, s.runs(), "a replay")
	require.NoError(t, raw.post(1))
	require.Equal(t, 1+2*again, s.runs(), "a replay to the benchmarks' own client")
	require.NoError(t, raw.post(2))
	require.Equal(t, 2+2*again, s.runs(), "a fresh request from the benchmarks' own client")
	post(2)
	require.Equal(t, 2+3*again, s.runs(), "a replay of what the benchmarks' own client sent")
}

func roundTrip(t *testing.T, transport *http.Transport, url, key string) (int, http.Header, []byte) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(payment))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set(keyField, key)
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, resp.Header, body
}

func testInProcess(t *testing.T, s service, again int64) {
	key := newKey()
	for i, runs := range []int64{1, 1 + again, 1 + 2*again} {
		status, body := s.call(key)
		require.NoError(t, checkAnswer(key, status, body))
		require.Equal(t, runs, s.runs(), "call %d", i)
	}
	setKey(key, 7)
	status, body := s.call(key)
	require.NoError(t, checkAnswer(key, status, body))
	require.Equal(t, 2+2*again, s.runs(), "another key")
}

// TestAnswersAreChecked tells that a wrong answer would be noticed.
func TestAnswersAreChecked(t *testing.T) {
	key := newKey()
	good := newAnswer(string(key))
	require.NoError(t, checkAnswer(key, http.StatusCreated, good))
	require.Error(t, checkAnswer(key, http.StatusOK, good))
	require.Error(t, checkAnswer(key, http.StatusCreated, good[:len(good)-1]))
	require.Error(t, checkAnswer(key, http.StatusCreated, nil))
	setKey(key, 1)
	require.Error(t, checkAnswer(key, http.StatusCreated, good), "the answer to another key")
}
