package waitroom_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// A record is the real thing in small: a key that has one owner at a time, is done, and is forgotten again.
type record struct {
	mu    sync.Mutex
	owned bool
	done  bool
	runs  int // completed so far

	owners atomic.Int32 // at work, to see that there is never more than one
}

// look finds the claim, with result zero, or how often the key has been completed.
func (r *record) look(context.Context, int) waitroom.Look[int] {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.done:
		return look{Verdict: waitroom.Everyones, Result: r.runs}
	case r.owned:
		return look{Verdict: waitroom.Again, After: time.Hour}
	default:
		r.owned = true
		return look{Verdict: waitroom.Mine}
	}
}

// end ends the claim: the operation is completed, or abandoned.
func (r *record) end(done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done {
		r.runs++
	}
	r.owned, r.done = false, done
}

// forget frees a key that is done.
func (r *record) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = false
}

func (r *record) completed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs
}

// TestNoWakeUpIsLost has callers own keys, wait for them and give up, as fast as they can. There is no fallback, so
// the test would hang if a single hint or turn went astray.
func TestNoWakeUpIsLost(t *testing.T) {
	const keys, callers, rounds = 4, 32, 400
	never := func(int, time.Duration) time.Duration { return 24 * time.Hour }
	room := waitroom.New[int](waitroom.Config{Fallback: never})
	records := make([]record, keys)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	errs := make(chan error, callers)
	for caller := range callers {
		go func() {
			rnd := rand.New(rand.NewPCG(1, uint64(caller)))
			var err error
			for i := 0; i < rounds && err == nil; i++ {
				n := rnd.IntN(keys)
				err = visit(ctx, rnd, room, &records[n], waitroom.Key{Key: fmt.Sprint(n)})
			}
			errs <- err
		}()
	}
	for range callers {
		require.NoError(t, <-errs)
	}
	require.Zero(t, room.Waiting())
	require.Zero(t, room.Lines())
}

// visit waits for a key, and works when it is free.
func visit(ctx context.Context, rnd *rand.Rand, room *room, r *record, k waitroom.Key) error {
	patient, leave := ctx, context.CancelFunc(func() {})
	if rnd.IntN(4) == 0 {
		patient, leave = context.WithTimeoutCause(ctx, time.Duration(rnd.IntN(200))*time.Microsecond, errLeft)
	}
	defer leave()
	before := r.completed()
	runs, err := room.Wait(patient, k, r.look)
	switch {
	case errors.Is(err, errLeft):
		return nil
	case err != nil:
		return err
	case runs > 0:
		if runs < before {
			return fmt.Errorf("told that there were %d runs, when there had been %d before it asked", runs, before)
		}
		if rnd.IntN(2) == 0 {
			r.forget()
			room.Hint("", k.Key)
		}
		return nil
	}
	if r.owners.Add(1) != 1 {
		return errors.New("two owners")
	}
	for range rnd.IntN(50) {
		r.completed() // work
	}
	r.owners.Add(-1)
	r.end(rnd.IntN(2) == 0)
	room.Hint("", k.Key)
	return nil
}
