package main

import (
	"net/http"
	"sync"
	"time"
)

// An outcome is what became of a request, as its answer tells.
type outcome int

// The page lists the outcomes in this order.
const (
	ran      outcome = iota // the operation ran, and this is its answer
	replayed                // the recorded answer of an earlier request
	busy                    // the first request still runs
	reused                  // the key belongs to another payload
	refused                 // anything else that the middleware, or the API, did not take
	outcomes
)

// outcomeOf sorts an answer by its status and the middleware's mark. It can go by the status because the
// API itself never says 409 or 422.
func outcomeOf(status int, replay bool) outcome {
	switch {
	case replay:
		return replayed
	case status == http.StatusConflict:
		return busy
	case status == http.StatusUnprocessableEntity:
		return reused
	case status >= 400:
		return refused
	default:
		return ran
	}
}

// counts holds a number for each outcome. In JSON it is a list, in the order of the constants.
type counts [outcomes]int

// span is how many seconds the page looks back.
const span = 60

// traffic counts answers by outcome, in all and for each of the last span seconds.
type traffic struct {
	mu     sync.Mutex
	total  counts
	recent [span]second // a ring: the second s is at s % span
}

// A second is the traffic of one second of Unix time.
type second struct {
	unix int64
	counts
}

// add counts one answer that was given now.
func (t *traffic) add(o outcome, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total[o]++
	s := &t.recent[now.Unix()%span]
	if s.unix != now.Unix() {
		*s = second{unix: now.Unix()} // it held a second that is out of sight by now
	}
	s.counts[o]++
}

// lastMinute returns the seconds up to and with now, oldest first, and the counts in all. Seconds without
// traffic have no entry of their own in the ring; an old one that still stands there is left out by its age.
func (t *traffic) lastMinute(now time.Time) (minute [span]counts, total counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := now.Unix() - span + 1
	for _, s := range t.recent {
		if age := s.unix - first; age >= 0 && age < span {
			minute[age] = s.counts
		}
	}
	return minute, t.total
}

// watch counts the answers of next. It stands in front of the middleware, so that it sees also what
// the middleware answers itself.
func (t *traffic) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &watched{ResponseWriter: w} // no status at all means 200
		next.ServeHTTP(seen, r)
		t.add(outcomeOf(seen.status, seen.Header().Get("Idempotency-Replayed") != ""), time.Now())
	})
}

// watched notes the last status that passes through it: what comes before is informational (1xx).
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets [http.ResponseController] reach what is underneath.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }
