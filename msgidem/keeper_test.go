package msgidem_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// untilLost is a handler that waits for the end of its ctx and notes when that was, and why.
func untilLost(after *time.Duration, cause *error) msgidem.Func {
	return func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
		start := time.Now()
		<-ctx.Done()
		*after, *cause = time.Since(start), context.Cause(ctx)
		return ctx.Err()
	}
}

func TestHeartbeats(t *testing.T) {
	bubble(t, "keep the claim and the delivery of a slow handler", func(r *rig) {
		r.cfg.Lease, r.cfg.Wait = 9*time.Second, -1
		d := message(1)
		var mu sync.Mutex
		var order []string
		note := func(op string) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, op)
			return nil
		}
		d.hook = note
		r.store.hook = func(_ context.Context, op string, _ int) error { return note(op) }
		r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			for range 61 {
				time.Sleep(time.Second)
				rec, ok := r.record()
				require.True(r, ok)
				require.Greater(r, rec.Remaining, 5*time.Second)
			}
			return ctx.Err()
		}
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.InDelta(r, 20, r.store.calls("extend"), 1)
		require.Equal(r, r.store.calls("extend"), d.beats())
		for i, op := range order {
			require.True(r, op != "beat" || order[i-1] == "extend", "the claim comes first")
		}
		require.Equal(r, []string{"complete", "ack"}, order[len(order)-2:])
	})
	bubble(t, "come as often as the broker's patience asks for", func(r *rig) {
		r.fn = lasting(59 * time.Second)
		d := message(1)
		d.msg.AckWait = 6 * time.Second
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Equal(r, 29, d.beats())
		require.Equal(r, 29, r.store.calls("extend"))
	})
	bubble(t, "are for the claim alone when the broker has none", func(r *rig) {
		r.fn = lasting(59 * time.Second)
		d := message(1)
		d.can &^= msgidem.CanHeartbeat
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Zero(r, d.beats())
		require.Equal(r, 5, r.store.calls("extend"))
	})
	bubble(t, "go on when the broker did not take one", func(r *rig) {
		r.fn = lasting(59 * time.Second)
		d := message(1)
		d.hook = func(op string) error {
			if op == "beat" {
				return errDown
			}
			return nil
		}
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Equal(r, 5, d.beats())
		require.EqualValues(r, 5, r.handler.Stats().BrokerErrors)
	})
	bubble(t, "survive a panic of the adapter", func(r *rig) {
		r.fn = lasting(59 * time.Second)
		d := message(1)
		d.hook = func(op string) error {
			if op == "beat" {
				panic("boom")
			}
			return nil
		}
		require.Equal(r, msgidem.Done, r.handle(d).Result)
	})
	bubble(t, "end before the claim is given up", func(r *rig) {
		r.fn = func(context.Context, msgidem.Message, idem.Claim) error {
			time.Sleep(10*time.Second + 1) // the first beat is on its way
			return errDown
		}
		r.store.hook = func(ctx context.Context, op string, _ int) error {
			if op == "extend" {
				<-ctx.Done()
			}
			return nil
		}
		require.Equal(r, msgidem.Retried, r.handle(message(1)).Result)
		_, ok := r.record()
		require.False(r, ok, "no Extend came after Abandon")
	})
	bubble(t, "go on while a failing Complete is tried again", func(r *rig) {
		r.store.hook = failing("complete", 16, errDown)
		d := message(1)
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Positive(r, d.beats())
		require.Equal(r, 17, r.store.calls("complete"))
	})
}

func TestLostClaim(t *testing.T) {
	bubble(t, "ends the handler's context, and nobody is told", func(r *rig) {
		var after time.Duration
		var cause error
		r.fn = untilLost(&after, &cause)
		d := message(1)
		r.store.hook = failing("extend", 9, idem.ErrClaimLost)
		out := r.handle(d)
		require.Equal(r, 10*time.Second, after)
		require.ErrorIs(r, cause, idem.ErrClaimLost)
		require.Equal(r, msgidem.Left, out.Result)
		require.ErrorIs(r, out.Err, idem.ErrClaimLost)
		require.Empty(r, d.calls, "no heartbeat either: it would keep the delivery from its new owner")
		require.EqualValues(r, 1, r.handler.Stats().ClaimsLost)
	})
	bubble(t, "is no failure of the message", func(r *rig) {
		r.fn, r.cfg.MaxAttempts = untilLost(new(time.Duration), new(error)), 1
		r.store.hook = failing("extend", 1, idem.ErrClaimLost)
		require.Equal(r, msgidem.Left, r.handle(message(1)).Result)
		require.Empty(r, r.letters)
		r.fn = returning()
		require.Equal(r, msgidem.Done, r.handle(message(2)).Result)
	})
	for name, hook := range map[string]func(context.Context, string, int) error{
		"a store that is down": failing("extend", 1000, errDown),
		"a store that hangs": func(ctx context.Context, op string, _ int) error {
			if op == "extend" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		},
		"a store that hangs and does not heed its context": func(_ context.Context, op string, _ int) error {
			if op == "extend" {
				time.Sleep(time.Hour)
			}
			return nil
		},
	} {
		bubble(t, "is presumed when the lease is over with "+name, func(r *rig) {
			var after time.Duration
			var cause error
			r.fn, r.store.hook = untilLost(&after, &cause), hook
			d := message(1)
			require.Equal(r, msgidem.Left, r.handle(d).Result)
			require.ErrorIs(r, cause, idem.ErrClaimLost)
			require.GreaterOrEqual(r, after, 30*time.Second)
			require.Less(r, after, 41*time.Second)
			require.Empty(r, d.told())
		})
	}
	for _, wait := range []time.Duration{0, 30 * time.Second} {
		bubble(t, "is never acknowledged, ack wait "+wait.String(), func(r *rig) {
			r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
				_, err := r.engine.Forget(ctx, "billing", "m1")
				r.own(0)
				return err
			}
			d := message(1)
			d.msg.AckWait = wait
			out := r.handle(d)
			require.ErrorIs(r, out.Err, idem.ErrClaimLost)
			require.Equal(r, wait == 0, slices.Equal(d.told(), []string{"nak"}), "what else would bring it back")
			require.Equal(r, wait > 0, len(d.told()) == 0)
			rec, _ := r.record()
			require.Equal(r, idem.InProgress, rec.State, "the new owner's")
		})
	}
	bubble(t, "makes no dead letter final", func(r *rig) {
		r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			_, err := r.engine.Forget(ctx, "billing", "m1")
			require.NoError(r, err)
			r.own(0)
			return idem.Permanent(errDown)
		}
		d := message(1)
		require.Equal(r, msgidem.Left, r.handle(d).Result)
		require.Empty(r, d.told())
	})
}

func TestWait(t *testing.T) {
	bubble(t, "a duplicate replays when the owner is done", func(r *rig) {
		claim := r.own(0)
		go func() {
			time.Sleep(700 * time.Millisecond)
			assert.NoError(r, r.engine.Complete(r.Context(), claim, idem.Response{}))
		}()
		require.Equal(r, msgidem.Skipped, r.handle(message(1)).Result)
		require.Zero(r, r.runs)
	})
	bubble(t, "it takes over when the owner gives up", func(r *rig) {
		claim := r.own(0)
		go func() {
			time.Sleep(700 * time.Millisecond)
			assert.NoError(r, r.engine.Abandon(r.Context(), claim))
		}()
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "it is given back until the lease is over", func(r *rig) {
		r.own(0)
		start := time.Now()
		d := message(1)
		out := r.handle(d)
		require.Equal(r, time.Second, time.Since(start))
		require.ErrorIs(r, out.Err, idem.ErrInProgress)
		require.Equal(r, msgidem.Retried, out.Result)
		require.Equal(r, idem.InProgress, out.State)
		require.Equal(r, []string{"nak"}, d.told())
		require.Equal(r, d.delay, out.Delay)
		require.Greater(r, d.delay, 29*time.Second)
		require.Less(r, d.delay, 34*time.Second)
		rec, _ := r.record()
		require.Equal(r, idem.InProgress, rec.State, "the owner's claim is untouched")
	})
	bubble(t, "the delay is for the lease as it is then", func(r *rig) {
		claim := r.own(2 * time.Second)
		r.cfg.Wait = 10 * time.Second
		go func() {
			time.Sleep(time.Second)
			assert.NoError(r, r.engine.Extend(r.Context(), claim, time.Minute))
		}()
		require.Greater(r, r.handle(message(1)).Delay, 50*time.Second)
	})
	bubble(t, "the broker hears of it meanwhile", func(r *rig) {
		r.own(time.Hour)
		r.cfg.Wait = time.Minute - 1
		d := message(1)
		r.handle(d)
		require.Equal(r, 5, d.beats())
		require.Zero(r, r.store.calls("extend"), "the claim is not this one's")
	})
	bubble(t, "no wait when none is wanted", func(r *rig) {
		r.own(0)
		r.cfg.Wait = -1
		start := time.Now()
		require.Equal(r, msgidem.Retried, r.handle(message(1)).Result)
		require.Zero(r, time.Since(start))
	})
	bubble(t, "it ends with the context, and the message is given back", func(r *rig) {
		r.own(0)
		ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		d := message(1)
		require.ErrorIs(r, r.start().Handle(ctx, d).Err, context.DeadlineExceeded)
		require.Equal(r, 300*time.Millisecond, time.Since(start))
		require.Equal(r, []string{"nak"}, d.told())
		require.Zero(r, r.handler.Stats().StoreErrors, "the store did nothing wrong")
	})
	t.Run("eight consumers and one message: one run", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, idem.Config{})
			r.fn = lasting(10 * time.Second)
			r.cfg.Wait = time.Minute
			h := r.start()
			results := make(chan msgidem.Result)
			for range 8 {
				go func() { results <- h.Handle(t.Context(), message(1)).Result }()
			}
			got := map[msgidem.Result]int{}
			for range 8 {
				got[<-results]++
			}
			require.Equal(t, map[msgidem.Result]int{msgidem.Done: 1, msgidem.Skipped: 7}, got)
			require.Equal(t, 1, r.runs)
			require.Zero(t, h.Stats().Waiting)
		})
	})
}

func TestLastDelivery(t *testing.T) {
	last := func() *delivery {
		d := message(3)
		d.msg.Last = true
		return d
	}
	bubble(t, "a failure is a dead letter, since it would be lost", func(r *rig) {
		r.fn = returning(errDown)
		d := last()
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, []string{"term"}, d.told())
		require.ErrorIs(r, r.letters[0].Err, errDown)
		_, ok := r.record()
		require.False(r, ok, "published anew it is run")
	})
	bubble(t, "a store that is down as well", func(r *rig) {
		r.store.hook = failing("begin", 1, errDown)
		require.Equal(r, msgidem.DeadLettered, r.handle(last()).Result)
		require.ErrorIs(r, r.letters[0].Err, msgidem.ErrStore)
	})
	bubble(t, "a duplicate waits for as long as it takes", func(r *rig) {
		claim := r.own(0)
		go func() {
			for range 61 {
				time.Sleep(time.Second)
				assert.NoError(r, r.engine.Extend(r.Context(), claim, 0))
			}
			assert.NoError(r, r.engine.Complete(r.Context(), claim, idem.Response{}))
		}()
		start := time.Now()
		require.Equal(r, msgidem.Skipped, r.handle(last()).Result)
		require.Equal(r, 61*time.Second, time.Since(start))
	})
}

func TestBeats(t *testing.T) {
	t.Run("keep the lease that the store grants when none was asked for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, idem.Config{Lease: 3 * time.Second})
			r.fn = lasting(10*time.Second - 1)
			require.Equal(t, msgidem.Done, r.handle(message(1)).Result)
			require.Equal(t, 9, r.store.calls("extend"))
		})
	})
	bubble(t, "come every third of the shorter of lease and patience", func(r *rig) {
		r.fn = lasting(12 * time.Second)
		d := message(1)
		d.msg.AckWait = 15 * time.Second // longer than a third of the lease, and shorter than the lease
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Equal(r, 2, d.beats(), "after 5 s and 10 s")
	})
	bubble(t, "extend by Config.Lease, not by the store's", func(r *rig) {
		r.cfg.Lease = 9 * time.Second
		r.fn = func(ctx context.Context, m msgidem.Message, _ idem.Claim) error {
			time.Sleep(4 * time.Second) // the first beat was after three
			out, err := r.engine.Begin(ctx, idem.Request{Scope: m.Scope, Key: m.ID, Fingerprint: idem.FingerprintOf(m.Payload)})
			require.Equal(r, 8*time.Second, out.Remaining)
			return err
		}
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
	})
}

func TestBeatsThatAreAbortedAreNoFailuresOfTheStore(t *testing.T) {
	bubble(t, "and are not counted", func(r *rig) {
		r.fn = lasting(10*time.Second + 1) // the first beat is on its way
		r.store.hook = func(ctx context.Context, op string, _ int) error {
			if op == "extend" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
		require.Equal(r, 1, r.store.calls("extend"))
		require.Zero(r, r.handler.Stats().StoreErrors)
	})
}
