package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func TestTieredDeadlines(t *testing.T) {
	inBubble(t, "are the remote record's, to the nanosecond", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid"), TTL: 10 * time.Second})
		time.Sleep(3 * time.Second)
		r.replays("paid", payment)
		time.Sleep(7*time.Second - 1)
		r.remote.calls()
		r.replays("paid", payment)
		require.Equal(r, silence, r.remote.calls())
		time.Sleep(1)
		r.expect(idem.Fresh, otherPayment)
	})
	inBubble(t, "are not moved by a slow network", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid"), TTL: time.Second})
		slow := func(_ context.Context, method string) error {
			if method == "Lookup" {
				time.Sleep(200 * time.Millisecond)
			}
			return nil
		}
		r.remote.before, r.remote.after = slow, slow
		r.replays("paid", payment)
		time.Sleep(399 * time.Millisecond)
		r.remote.calls()
		r.replays("paid", payment)
		require.Equal(r, silence, r.remote.calls())
		time.Sleep(2 * time.Millisecond)
		r.replays("paid", payment)
		require.Equal(r, int64(1), r.remote.begins.Load(), "the request took 0.2 s of what was left, or else the reply did")
		time.Sleep(199 * time.Millisecond)
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "that are over when the answer arrives keep nothing", func(r tier) {
		r.done(payment, idem.Response{TTL: time.Second})
		r.remote.after = func(_ context.Context, method string) error {
			if method == "Lookup" {
				time.Sleep(999 * time.Millisecond)
			}
			return nil
		}
		time.Sleep(time.Millisecond)
		r.expect(idem.Replay, payment)
		require.Zero(r, r.local.Len())
	})
	inBubble(t, "are at most the local engine's TTL away", func(r tier) {
		r.known("paid", payment)
		time.Sleep(time.Minute - 1)
		r.replays("paid", payment)
		require.Equal(r, silence, r.remote.calls())
		time.Sleep(1)
		r.replays("paid", payment)
		require.Equal(r, fetched, r.remote.calls())
		r.replays("paid", payment)
		require.Equal(r, silence, r.remote.calls())
	})
	inBubble(t, "are not met by a look-up that hangs", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid")})
		r.remote.before = func(ctx context.Context, method string) error {
			if method == "Lookup" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		began := time.Now()
		r.replays("paid", payment)
		require.Equal(r, time.Second, time.Since(began))
	})
}

func TestTieredForget(t *testing.T) {
	forget := func(r tier) {
		r.Helper()
		found, err := r.Forget(r.Context(), payment.Scope, payment.Key)
		require.NoError(r, err)
		require.True(r, found)
	}
	inBubble(t, "is seen at once by the process that forgets", func(r tier) {
		r.known("paid", payment)
		forget(r)
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "is seen by others when the local TTL ends", func(r tier) {
		r.known("paid", payment)
		forget(r.neighbour())
		time.Sleep(time.Minute - 1)
		r.replays("paid", payment)
		time.Sleep(1)
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "is seen at once by others for another request", func(r tier) {
		r.known("paid", payment)
		r.expect(idem.Mismatch, otherPayment)
		forget(r.neighbour())
		r.done(otherPayment, idem.Response{Body: []byte("paid otherwise")})
		r.replays("paid otherwise", otherPayment)
		r.remote.calls()
		r.replays("paid otherwise", otherPayment)
		require.Equal(r, silence, r.remote.calls(), "the newer record took the place of the older")
		r.expect(idem.Mismatch, payment)
	})
	inBubble(t, "is seen by others as soon as they are granted the key", func(r tier) {
		r.known("paid", payment)
		forget(r.neighbour())
		claim := r.expect(idem.Fresh, otherPayment).Claim
		r.expect(idem.Mismatch, payment)
		require.NoError(r, r.Complete(r.Context(), claim, idem.Response{Body: []byte("paid otherwise")}))
		r.expect(idem.Mismatch, payment)
		r.replays("paid otherwise", otherPayment)
	})
	inBubble(t, "that fails is taken for one that worked", func(r tier) {
		r.known("paid", payment)
		lost := errors.New("reply lost")
		r.remote.after = func(_ context.Context, method string) error {
			if method == "Forget" {
				return lost
			}
			return nil
		}
		_, err := r.Forget(r.Context(), payment.Scope, payment.Key)
		require.ErrorIs(r, err, lost)
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "is not undone by an answer that is on its way", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid")})
		r.remote.after = func(_ context.Context, method string) error {
			if method == "Lookup" {
				forget(r)
			}
			return nil
		}
		r.replays("paid", payment) // it was, when this began
		r.remote.after = nil
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "is not undone by a caller that asks meanwhile", func(r tier) {
		r.known("paid", payment)
		r.remote.before = func(_ context.Context, method string) error {
			if method == "Forget" {
				r.replays("paid", payment)
			}
			return nil
		}
		forget(r)
		r.remote.before = nil
		r.expect(idem.Fresh, payment)
	})
	inBubble(t, "and a new claim are seen although they come between two questions", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid")})
		neighbour := r.neighbour()
		r.remote.before = func(_ context.Context, method string) error {
			if method == "Lookup" {
				r.remote.before = nil
				forget(neighbour)
				neighbour.expect(idem.Fresh, payment)
			}
			return nil
		}
		r.replays("paid", payment)
		r.expect(idem.InProgress, payment)
		require.Zero(r, r.local.Len())
	})
	inBubble(t, "and Resolve leave nothing behind", func(r tier) {
		r.known("paid", payment)
		forget(r.neighbour())
		r.neighbour().expect(idem.Fresh, payment)
		require.NoError(r, r.Resolve(r.Context(), payment.Scope, payment.Key, idem.Response{Body: []byte("resolved")}))
		r.replays("resolved", payment)
	})
}

// TestTieredKeepsTheNewer has an older record arrive after a newer one.
func TestTieredKeepsTheNewer(t *testing.T) {
	inBubble(t, "record", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("old")})
		held, lookups := make(chan struct{}), 0
		r.remote.after = func(_ context.Context, method string) error {
			if lookups++; method == "Lookup" && lookups == 2 {
				<-held
			}
			return nil
		}
		go func() { r.replays("old", payment) }() // its Lookup has found the old record, and is held up
		synctest.Wait()
		neighbour := r.neighbour()
		_, err := neighbour.Forget(r.Context(), payment.Scope, payment.Key)
		require.NoError(r, err)
		neighbour.done(payment, idem.Response{Body: []byte("new")})
		waiting := payment
		waiting.Wait = true
		r.replays("new", waiting) // in another line than the first
		close(held)
		synctest.Wait()
		r.remote.calls()
		r.replays("new", payment)
		require.Equal(r, silence, r.remote.calls())
	})
}

// TestTieredForgetsUnderLoad has callers run, replay and forget a few keys as fast as they can. The body is the
// token of its claim, so that a replay shows how old it is: none may be older than what was forgotten before it
// was asked for.
func TestTieredForgetsUnderLoad(t *testing.T) {
	const keys, callers, rounds = 3, 8, 1500
	r := newTier(t, idem.Config{})
	var forgotten [keys]floor
	var all sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(caller)))
			for i := 0; i < rounds && errs[caller] == nil; i++ {
				n := rnd.IntN(keys)
				errs[caller] = useTier(r, rnd, idem.Request{Key: fmt.Sprint(n), Wait: rnd.IntN(2) == 0}, &forgotten[n])
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Positive(t, r.local.Stats().Replayed)
	require.Positive(t, r.local.Stats().Forgotten)
}

// A floor is the highest token that was there when a Forget began. One caller at a time forgets a key, so that it is
// the record he has seen: if it were a claim that came in between, its owner could complete it later, under a token
// below the floor.
type floor struct {
	sync.Mutex
	token atomic.Uint64
}

func useTier(r tier, rnd *rand.Rand, req idem.Request, forgotten *floor) error {
	ctx := context.Background()
	least := forgotten.token.Load()
	out, err := r.Begin(ctx, req)
	if err != nil {
		return err
	}
	switch out.State {
	case idem.Fresh:
		return r.Complete(ctx, out.Claim, idem.Response{Body: fmt.Append(nil, out.Claim.Token)})
	case idem.InProgress:
		return nil
	}
	var token uint64
	if _, err = fmt.Sscan(string(out.Response.Body), &token); err != nil {
		return err
	}
	if token <= least {
		return fmt.Errorf("replayed token %d, and %d had been forgotten before", token, least)
	}
	if rnd.IntN(10) > 0 {
		return nil
	}
	forgotten.Lock()
	defer forgotten.Unlock()
	rec, found, err := r.Lookup(ctx, req.Scope, req.Key)
	if err != nil || !found || rec.State != idem.Replay {
		return err
	}
	_, err = r.Forget(ctx, req.Scope, req.Key)
	forgotten.token.Store(rec.Token)
	return err
}
