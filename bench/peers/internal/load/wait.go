package load

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// Wait has duplicates wait for an owner for about d, over and over, and returns the median time from Complete
// until the last of them has the response.
func (s *Session) Wait(duplicates int, d time.Duration) (Values, error) {
	w, ok := s.store.(rival.Waiter)
	if !ok {
		return nil, fmt.Errorf("%w: with %s duplicates cannot wait", errUnknown, s.rival.Name)
	}
	keys, got := make(chan uint64), make(chan int)
	defer close(keys)
	for range duplicates {
		go func() {
			var k rival.Key
			buf := make([]byte, 0, 1024)
			for i := range keys {
				got <- len(w.Wait(k.At(i), buf))
			}
		}()
	}
	var took []float64
	for start := time.Now(); time.Since(start) < d; {
		t, err := s.waitRound(w, duplicates, keys, got)
		if err != nil {
			return nil, err
		}
		took = append(took, float64(t.Nanoseconds()))
	}
	slices.Sort(took)
	return Values{"wake-ns": took[len(took)/2]}, nil
}

func (s *Session) waitRound(w rival.Waiter, duplicates int, keys chan<- uint64, got <-chan int) (time.Duration, error) {
	var k rival.Key
	i := waitKeys + s.fresh.Add(1)
	state, _, claim := w.Begin(k.At(i), nil)
	if state != rival.Fresh {
		return 0, fmt.Errorf("%s: a fresh key is answered %v", s.rival.Name, state)
	}
	for range duplicates {
		keys <- i
	}
	for w.Waiting() < duplicates {
		runtime.Gosched()
	}
	start := time.Now()
	w.Complete(k.At(i), claim, body, s.ttl)
	for range duplicates {
		if n := <-got; n != rival.BodyBytes {
			return 0, fmt.Errorf("%s: a duplicate that waited has %d bytes", s.rival.Name, n)
		}
	}
	return time.Since(start), nil
}
