package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOutcomeOf has the statuses that the guide provokes, and those that only a failure brings.
func TestOutcomeOf(t *testing.T) {
	for _, c := range []struct {
		status int
		replay bool
		want   outcome
	}{
		{200, false, ran}, {201, false, ran}, {201, true, replayed}, {404, true, replayed}, {409, false, busy},
		{422, false, reused}, {400, false, refused}, {410, false, refused}, {503, false, refused},
	} {
		require.Equal(t, c.want, outcomeOf(c.status, c.replay), "%+v", c)
	}
}

// TestTraffic gives the ring its time, and looks at both edges of the minute.
func TestTraffic(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := func(age int) time.Time { return now.Add(-time.Duration(age) * time.Second) }

	t.Run("each second has its place, oldest first", func(t *testing.T) {
		var tr traffic
		for age := span - 1; age >= 0; age-- {
			for range age % 3 {
				tr.add(replayed, at(age))
			}
		}
		tr.add(busy, at(0))
		minute, total := tr.lastMinute(now)
		for i, c := range minute {
			require.Equal(t, (span-1-i)%3, c[replayed], "second %d", i)
		}
		require.Equal(t, 1, minute[span-1][busy])
		require.Equal(t, counts{replayed: 60, busy: 1}, total)
	})

	t.Run("a second leaves the minute and stays in the total", func(t *testing.T) {
		var tr traffic
		tr.add(ran, at(span-1))
		minute, _ := tr.lastMinute(now)
		require.Equal(t, counts{ran: 1}, minute[0])
		for _, later := range []time.Duration{time.Second, span * time.Second, time.Hour} {
			gone, total := tr.lastMinute(now.Add(later))
			require.Equal(t, [span]counts{}, gone, "after %v", later)
			require.Equal(t, counts{ran: 1}, total)
		}

		tr.add(ran, at(-1)) // takes its place in the ring
		minute, total := tr.lastMinute(at(-1))
		require.Equal(t, [span]counts{span - 1: {ran: 1}}, minute)
		require.Equal(t, counts{ran: 2}, total)
	})

	t.Run("the final status counts, and the writer underneath is reachable", func(t *testing.T) {
		var tr traffic
		flushed := errors.New("not called")
		h := tr.watch(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusUnprocessableEntity)
			flushed = http.NewResponseController(w).Flush()
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
		_, total := tr.lastMinute(time.Now())
		require.Equal(t, counts{reused: 1}, total)
		require.NoError(t, flushed)
	})

	t.Run("a handler that writes no status said 200", func(t *testing.T) {
		var tr traffic
		tr.watch(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).
			ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
		_, total := tr.lastMinute(time.Now())
		require.Equal(t, counts{ran: 1}, total)
	})
}
