package msgidem_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// lastDelivery is one after which the broker does not deliver the message again.
func lastDelivery() *delivery {
	d := message(3)
	d.msg.Last = true
	return d
}

func TestLastDeliveryThatLosesItsClaim(t *testing.T) {
	for _, wait := range []time.Duration{0, 30 * time.Second} {
		bubble(t, "to nobody is a dead letter, ack wait "+wait.String(), func(r *rig) {
			r.fn = untilLost(new(time.Duration), new(error))
			r.store.hook = failing("extend", 1000, errDown)
			d := lastDelivery()
			d.msg.AckWait = wait
			out := r.handle(d)
			require.Equal(r, msgidem.DeadLettered, out.Result)
			require.ErrorIs(r, out.Err, idem.ErrClaimLost)
			require.Len(r, r.letters, 1)
			require.Equal(r, []string{"term"}, d.told())
			_, ok := r.record()
			require.False(r, ok, "published anew it is run")
			require.Equal(r, 1, r.runs)
		})
	}
	bubble(t, "to a store that is away is a dead letter", func(r *rig) {
		r.fn = untilLost(new(time.Duration), new(error))
		r.store.hook = func(_ context.Context, op string, n int) error {
			if op == "begin" && n == 1 {
				return nil
			}
			return errDown
		}
		out := r.handle(lastDelivery())
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, idem.ErrClaimLost)
		require.ErrorIs(r, out.Err, errDown)
	})

	// robbed is a handler whose message another consumer takes over; the other one settles it a minute later.
	robbed := func(r *rig, result error, settle func(idem.Claim) error) msgidem.Func {
		return func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			_, err := r.engine.Forget(ctx, "billing", "m1")
			require.NoError(r, err)
			claim := r.own(0)
			go func() {
				for range 4 {
					time.Sleep(15 * time.Second)
					assert.NoError(r, r.engine.Extend(context.Background(), claim, 0))
				}
				assert.NoError(r, settle(claim))
			}()
			if result != nil { // it is told only by its heartbeat
				<-ctx.Done()
			}
			return result
		}
	}
	for name, result := range map[string]error{"before it recorded its success": nil, "as its heartbeat says": errDown} {
		bubble(t, "to another consumer waits for it, and is no letter when that is done: "+name, func(r *rig) {
			r.fn = robbed(r, result, func(c idem.Claim) error { return r.engine.Complete(context.Background(), c, idem.Response{}) })
			start := time.Now()
			d := lastDelivery()
			out := r.handle(d)
			require.Equal(r, msgidem.Skipped, out.Result)
			require.Equal(r, idem.Replay, out.State)
			require.NoError(r, out.Err)
			require.Equal(r, []string{"ack"}, d.told())
			require.Equal(r, time.Minute, time.Since(start))
			require.Empty(r, r.letters)
			require.Equal(r, 1, r.runs)
			require.EqualValues(r, 1, r.handler.Stats().ClaimsLost)
		})
		bubble(t, "to another consumer is a letter when that fails: "+name, func(r *rig) {
			r.fn = robbed(r, result, func(c idem.Claim) error { return r.engine.Abandon(context.Background(), c) })
			out := r.handle(lastDelivery())
			require.Equal(r, msgidem.DeadLettered, out.Result)
			require.ErrorIs(r, out.Err, idem.ErrClaimLost)
			require.Len(r, r.letters, 1)
			require.Equal(r, 1, r.runs, "it may have taken effect")
			_, ok := r.record()
			require.False(r, ok)
		})
	}
	bubble(t, "after its letter was accepted has no second one", func(r *rig) {
		r.fn = robbed(r, nil, func(c idem.Claim) error { return r.engine.Abandon(context.Background(), c) })
		fn := r.fn
		r.fn = func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
			_ = fn(ctx, m, c)
			return idem.Permanent(errDown)
		}
		require.Equal(r, msgidem.Left, r.handle(lastDelivery()).Result)
		require.Len(r, r.letters, 1)
		time.Sleep(2 * time.Minute)
	})
}

func TestLastDeliveryWhoseLetterIsNotAccepted(t *testing.T) {
	for name, fn := range map[string]msgidem.Func{
		"a failure": returning(errDown, errDown), "a permanent one": returning(idem.Permanent(errDown), idem.Permanent(errDown)),
	} {
		bubble(t, "at once is tried again: "+name, func(r *rig) {
			r.fn = fn
			calls, accept := 0, r.cfg.DeadLetter
			r.cfg.DeadLetter = func(ctx context.Context, l msgidem.DeadLetter) error {
				switch calls++; calls {
				case 1:
					return errDown
				case 2:
					panic("boom")
				}
				return accept(ctx, l)
			}
			d := lastDelivery()
			require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
			require.Len(r, r.letters, 1)
			require.Equal(r, []string{"term"}, d.told())
			require.EqualValues(r, 2, r.handler.Stats().HookErrors)
		})
	}
	bubble(t, "for a lease is given up", func(r *rig) {
		r.fn, r.hookErr = returning(errDown), errDown
		d := lastDelivery()
		start := time.Now()
		require.ErrorIs(r, r.handle(d).Err, msgidem.ErrDeadLetter)
		require.Equal(r, 30*time.Second, time.Since(start))
		require.Equal(r, []string{"nak"}, d.told())
		require.Positive(r, d.beats())
	})
	bubble(t, "has another delivery to try it when it is not the last", func(r *rig) {
		r.fn, r.hookErr = returning(idem.Permanent(errDown)), errDown
		start := time.Now()
		require.ErrorIs(r, r.handle(message(3)).Err, msgidem.ErrDeadLetter)
		require.Zero(r, time.Since(start))
	})
}

func TestSlowLetter(t *testing.T) {
	bubble(t, "of a message without a claim keeps the delivery", func(r *rig) {
		r.handle(message(1))
		r.handler = nil
		r.cfg.DeadLetter = func(context.Context, msgidem.DeadLetter) error {
			time.Sleep(9 * time.Second)
			return nil
		}
		d := message(1)
		d.msg.Payload, d.msg.AckWait = []byte("pay 8"), 6*time.Second
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, 4, d.beats())
		require.Zero(r, r.store.calls("extend"), "the claim is not this one's")
		time.Sleep(time.Hour)
		require.Equal(r, 4, d.beats())
	})
}

func TestLastDeliveryOfAnotherOwnersMessage(t *testing.T) {
	bubble(t, "waits even where none should", func(r *rig) {
		claim, d := r.own(0), message(3)
		d.msg.Last = true
		r.cfg.Wait = -1
		go func() {
			time.Sleep(7 * time.Second)
			assert.NoError(r, r.engine.Complete(r.Context(), claim, idem.Response{}))
		}()
		require.Equal(r, msgidem.Skipped, r.handle(d).Result)
		require.Empty(r, r.letters)
	})
}
