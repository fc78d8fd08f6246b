package idem_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// The race detector runs fewer rounds than TestHeavyStampede.
func TestStampede(t *testing.T) {
	for _, wait := range []bool{false, true} {
		stampede(t, 256, 40, wait)
	}
}

// stampede lets so many callers begin one key at the same moment, round after round: one is Fresh.
func stampede(t *testing.T, callers, rounds int, wait bool) {
	r := newRig(t, idem.Config{})
	gates := make([]chan struct{}, rounds)
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	var arrived, ended sync.WaitGroup
	var fresh, others atomic.Int64
	for range callers {
		ended.Go(func() {
			for i, gate := range gates {
				<-gate
				out, err := r.Begin(t.Context(), idem.Request{Key: fmt.Sprint(i % 3), Wait: wait})
				switch {
				case err != nil:
					t.Error(err)
				case out.State == idem.Fresh:
					fresh.Add(1)
					err = r.Complete(t.Context(), out.Claim, idem.Response{})
				case out.State == idem.Replay || out.State == idem.InProgress && !wait:
					others.Add(1)
				}
				if err != nil {
					t.Error(err)
				}
				arrived.Done()
			}
		})
	}
	for i, gate := range gates {
		arrived.Add(callers)
		close(gate)
		arrived.Wait()
		require.EqualValues(t, i+1, fresh.Load(), "exactly one Fresh in each round")
		require.EqualValues(t, (i+1)*(callers-1), others.Load())
		r.forget(fmt.Sprint(i%3), true)
	}
	ended.Wait()
}

// A waiter's context ends just when it is given the claim. The claim must go on to the next in line, or
// else be free: never lost, never held by two.
func TestCancelRacesTheHandOver(t *testing.T) {
	r := newRig(t, idem.Config{Shards: 1})
	for i := range 10_000 {
		h := handOver{rig: r, followed: i%2 == 0}
		h.run(i%3 == 0)
	}
	require.Zero(t, r.Len())
	require.Zero(t, r.Stats().Waiting)
}

// A handOver is one round of that race.
type handOver struct {
	rig
	followed bool // there is a second waiter, who stays
	owners   atomic.Int32
	callers  sync.WaitGroup
}

func (h *handOver) run(settled bool) {
	patient, stop := context.WithTimeout(h.Context(), 20*time.Second) // less than a lease
	defer stop()
	hasty, cancel := context.WithCancel(patient)
	h.owners.Store(1)
	owner := h.fresh("k", 0)
	h.callers.Go(func() {
		if err := h.own(hasty); err != nil && !errors.Is(err, context.Canceled) {
			h.Error(err)
		}
	})
	if h.followed {
		h.callers.Go(func() {
			if err := h.own(patient); err != nil {
				h.Errorf("the claim was lost: %v", err)
			}
		})
	}
	if settled { // otherwise the race includes that they begin to wait
		eventually(h, func() bool { return h.Stats().Waiting > 0 }, "somebody waits")
	}
	h.callers.Go(cancel)
	h.owners.Add(-1)
	if err := h.Abandon(h.Context(), owner); err != nil {
		h.Error(err)
	}
	h.callers.Wait()
	require.False(h, h.Failed())
	require.NoError(h, h.Abandon(h.Context(), h.fresh("k", 0)), "the key is free at once")
}

// own waits for the claim, holds it for a moment and gives it up.
func (h *handOver) own(ctx context.Context) error {
	out, err := h.Begin(ctx, idem.Request{Key: "k", Wait: true})
	if err != nil {
		return err
	}
	if n := h.owners.Add(1); out.State != idem.Fresh || n != 1 {
		return fmt.Errorf("%v with %d owners", out.State, n)
	}
	runtime.Gosched()
	h.owners.Add(-1)
	return h.Abandon(h.Context(), out.Claim)
}

// The owner completes between a duplicate's look and its falling asleep.
func TestCompleteRacesTheWaiter(t *testing.T) {
	r := newRig(t, idem.Config{Shards: 1})
	for range 3000 {
		c := r.fresh("k", 0)
		answer := make(chan idem.State, 1)
		go func() {
			out, _ := r.Begin(t.Context(), idem.Request{Key: "k", Wait: true})
			answer <- out.State
		}()
		runtime.Gosched()
		r.complete(c, "b")
		require.Equal(t, idem.Replay, <-answer, "it must not run again, nor sleep for ever")
		r.forget("k", true)
	}
}

// Large bodies are copied outside the lock, while others erase them.
func TestForgetRacesLargeReplays(t *testing.T) {
	const size = 40_000
	r := newRig(t, idem.Config{Shards: 1})
	var callers sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
		callers.Go(func() {
			buf := make([]byte, 0, size)
			for ; !stop.Load(); runtime.Gosched() {
				out, err := r.Begin(t.Context(), idem.Request{Key: "k", Buf: buf})
				switch {
				case err != nil:
					t.Error(err)
				case out.State == idem.Fresh:
					_ = r.Complete(t.Context(), out.Claim, idem.Response{Body: pattern(out.Claim.Token, size)})
				case out.State == idem.Replay:
					wantPattern(t, out.Response.Body, size)
				}
			}
		})
	}
	defer callers.Wait()
	defer stop.Store(true)
	for range 200 {
		_, _ = r.Forget(t.Context(), "", "k")
		for rec := range r.All() {
			if rec.State == idem.Replay {
				wantPattern(t, rec.Response.Body, size)
			}
		}
		runtime.Gosched()
	}
}

// pattern is a body that tells whether it is in one piece.
func pattern(n uint64, size int) []byte {
	body := make([]byte, size)
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(body[i:], n)
	}
	return body
}

func wantPattern(t *testing.T, body []byte, size int) {
	if len(body) != size || binary.LittleEndian.Uint64(body) == 0 {
		t.Errorf("body of %d bytes, beginning with %x", len(body), body[:min(8, len(body))])
		return
	}
	for i := 0; i < size; i += 8 {
		if string(body[i:i+8]) != string(body[:8]) {
			t.Error("a body of two responses")
			return
		}
	}
}

// The index splits and joins its tables under the iteration. What stays is yielded once.
func TestAllWhileRecordsComeAndGo(t *testing.T) {
	const stable = 3000
	r := newRig(t, idem.Config{Shards: 1})
	for i := range stable {
		r.done(fmt.Sprint("stable", i), "b", time.Hour)
	}
	var callers sync.WaitGroup
	var stop atomic.Bool
	for worker := range 2 {
		callers.Go(func() {
			for n := 200; !stop.Load(); n = 4000 - n { // grows and shrinks
				for i := range 4000 {
					key := fmt.Sprint(worker, "/", i)
					if i >= n {
						_, _ = r.Forget(t.Context(), "", key)
					} else if out, err := r.Begin(t.Context(), idem.Request{Key: key}); err != nil || out.State == 0 {
						t.Error(err)
					}
				}
			}
		})
	}
	defer callers.Wait()
	defer stop.Store(true)
	for range 10 {
		seen := map[string]int{}
		for rec := range r.All() {
			if rec.State == idem.Replay {
				seen[rec.Key]++
				r.replays(rec.Key, "b")
			}
		}
		require.Len(t, seen, stable)
		for key, n := range seen {
			if n != 1 {
				t.Fatalf("%q was yielded %d times", key, n)
			}
		}
	}
}

// Records run out while others ask for them. No key may end up in a state that nobody can claim.
func TestSweepRacesClaims(t *testing.T) {
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		r := newRig(t, idem.Config{Shards: 2, OnLeaseExpiry: policy, TTL: time.Millisecond, Lease: time.Millisecond})
		var callers sync.WaitGroup
		for worker := range 64 {
			callers.Go(func() {
				for i := range 200 {
					useBriefly(r, fmt.Sprint(i%11), worker+i)
				}
			})
		}
		callers.Wait()
		for i := range 11 { // within a lease and a TTL
			eventually(t, func() bool {
				out, err := r.Begin(t.Context(), idem.Request{Key: fmt.Sprint(i), Lease: time.Hour})
				require.NoError(t, err)
				return out.State == idem.Fresh
			}, "the key can be claimed")
		}
		require.Equal(t, 11, r.Stats().InProgress)
	}
}

func useBriefly(r rig, key string, n int) {
	out, err := r.Begin(r.Context(), idem.Request{Key: key, Wait: n%5 == 0})
	if err != nil || out.State == 0 {
		r.Errorf("begin: %v, %v", out.State, err)
	}
	if out.State != idem.Fresh {
		return
	}
	switch n % 3 {
	case 0:
		err = r.Complete(r.Context(), out.Claim, idem.Response{Body: make([]byte, n)})
	case 1:
		err = r.Abandon(r.Context(), out.Claim)
	}
	if err != nil && !errors.Is(err, idem.ErrClaimLost) {
		r.Error(err)
	}
}
