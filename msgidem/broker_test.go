package msgidem_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

func TestStoreFailures(t *testing.T) {
	bubble(t, "Begin: nothing runs, and the message is given back", func(r *rig) {
		r.store.hook = failing("begin", 1, idem.ErrFull)
		d := message(1)
		out := r.handle(d)
		require.Equal(r, msgidem.Retried, out.Result)
		require.Zero(r, out.State)
		require.ErrorIs(r, out.Err, msgidem.ErrStore)
		require.ErrorIs(r, out.Err, idem.ErrFull)
		require.Equal(r, []string{"nak"}, d.told())
		require.Positive(r, d.delay)
		require.Zero(r, r.runs)
	})
	bubble(t, "Complete: it is tried again, and then acknowledged", func(r *rig) {
		r.store.hook = failing("complete", 5, errDown)
		d := message(1)
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Equal(r, []string{"ack"}, d.told())
		require.EqualValues(r, 5, r.handler.Stats().StoreErrors)
	})
	bubble(t, "Complete for good: never acknowledged, and never released", func(r *rig) {
		r.store.hook = failing("complete", 1000, errDown)
		d := message(1)
		start := time.Now()
		out := r.handle(d)
		require.Equal(r, msgidem.Retried, out.Result)
		require.ErrorIs(r, out.Err, msgidem.ErrStore)
		require.Equal(r, []string{"nak"}, d.told())
		require.Equal(r, 30*time.Second, time.Since(start), "as long as a lease")
		rec, _ := r.record()
		require.Equal(r, idem.InProgress, rec.State)
		require.Zero(r, r.store.calls("abandon"))
		require.EqualValues(r, r.store.calls("complete"), r.handler.Stats().StoreErrors, "the last one too")
	})
	bubble(t, "Complete hangs: each try has its time", func(r *rig) {
		r.store.hook = func(ctx context.Context, op string, n int) error {
			if op == "complete" && n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		start := time.Now()
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
		require.InDelta(r, 10*time.Second, time.Since(start), float64(time.Second))
	})
	bubble(t, "a closed store is not asked again", func(r *rig) {
		r.store.hook = failing("complete", 1000, idem.ErrClosed)
		require.ErrorIs(r, r.handle(message(1)).Err, idem.ErrClosed)
		require.Equal(r, 1, r.store.calls("complete"))
		require.EqualValues(r, 1, r.handler.Stats().StoreErrors)
	})
	bubble(t, "a record without its body is a record", func(r *rig) {
		r.store.hook = failing("complete", 1, idem.ErrTruncated)
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
		require.Zero(r, r.handler.Stats().StoreErrors)
	})
	bubble(t, "Abandon: the message is free when its lease ends", func(r *rig) {
		r.store.hook = failing("abandon", 1, errDown)
		r.fn = returning(errDown)
		d := message(1)
		require.Equal(r, msgidem.Retried, r.handle(d).Result)
		require.Equal(r, []string{"nak"}, d.told())
	})
	bubble(t, "the end of the consumer's context does not keep a success from being recorded", func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		r.store.hook = func(ctx context.Context, op string, _ int) error {
			if op == "complete" {
				return ctx.Err()
			}
			return nil
		}
		r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			cancel()
			<-ctx.Done()
			return nil
		}
		d := message(1)
		require.Equal(r, msgidem.Done, r.start().Handle(ctx, d).Result)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "a panic of the store leaves the message to the broker", func(r *rig) {
		r.store.hook = func(context.Context, string, int) error { panic("boom") }
		d := message(1)
		out := r.handle(d)
		require.Equal(r, msgidem.Left, out.Result)
		var panicked *msgidem.PanicError
		require.ErrorAs(r, out.Err, &panicked)
		require.Empty(r, d.calls)
	})
}

func TestUnknownOutcome(t *testing.T) {
	bubble(t, "is nobody's to run; after its attempts it is a dead letter", func(r *rig) {
		engine := newRig(r.T, idem.Config{OnLeaseExpiry: idem.Hold}).engine
		r.engine, r.store.Store, r.cfg.MaxAttempts = engine, engine, 3
		r.own(time.Second)
		time.Sleep(time.Minute)
		for i := range 2 {
			d := message(i + 1)
			require.ErrorIs(r, r.handle(d).Err, idem.ErrUnknown)
			require.Equal(r, []string{"nak"}, d.told())
		}
		d := message(3)
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.ErrorIs(r, r.letters[0].Err, idem.ErrUnknown)
		rec, _ := r.record()
		require.Equal(r, idem.Unknown, rec.State, "for somebody to resolve")
		require.Zero(r, r.runs)
	})
}

func TestBrokerFailures(t *testing.T) {
	for op, result := range map[string]error{"ack": nil, "nak": errDown, "term": idem.Permanent(errDown)} {
		bubble(t, op+" is not taken: the message is left to the broker", func(r *rig) {
			r.fn = returning(result)
			d := message(1)
			d.hook = func(string) error { return errDown }
			out := r.handle(d)
			require.Equal(r, msgidem.Left, out.Result)
			require.ErrorIs(r, out.Err, msgidem.ErrBroker)
			require.Equal(r, []string{op}, d.told())
			require.EqualValues(r, 1, r.handler.Stats().BrokerErrors)
		})
		bubble(t, op+" panics: the same", func(r *rig) {
			r.fn = returning(result)
			d := message(1)
			d.hook = func(string) error { panic("boom") }
			out := r.handle(d)
			require.Equal(r, msgidem.Left, out.Result)
			require.EqualValues(r, 1, r.handler.Stats().Left)
			time.Sleep(time.Hour) // a timer that was left would beat
			require.Zero(r, d.beats())
		})
	}
	bubble(t, "an acknowledgement that was lost: the next delivery is a duplicate", func(r *rig) {
		d := message(1)
		d.hook = func(string) error { return errDown }
		r.handle(d)
		require.Equal(r, msgidem.Skipped, r.handle(message(2)).Result)
		require.Equal(r, 1, r.runs)
	})
	t.Run("an adapter that is nil", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		require.Equal(t, msgidem.Left, r.start().Handle(t.Context(), nil).Result)
		var d *delivery
		require.Equal(t, msgidem.Left, r.start().Handle(t.Context(), d).Result)
	})
}

func TestCapabilities(t *testing.T) {
	bubble(t, "no term: a dead letter is acknowledged", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown))
		d := message(1)
		d.can &^= msgidem.CanTerm
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "no nak: the caller is told when to handle it again", func(r *rig) {
		r.fn = returning(errDown)
		d := message(0)
		d.can = 0
		out := r.handle(d)
		require.Equal(r, msgidem.Retried, out.Result)
		require.Positive(r, out.Delay)
		require.Empty(r, d.calls)
		out = r.handle(d)
		require.Equal(r, msgidem.Done, out.Result)
		require.Equal(r, 2, out.Attempt)
	})
	bubble(t, "no delay: it is sat out, with heartbeats, and then given back", func(r *rig) {
		r.fn = returning(errDown)
		r.cfg.Backoff = func(int) time.Duration { return 7 * time.Second }
		d := message(1)
		d.can, d.msg.AckWait = msgidem.CanNak|msgidem.CanHeartbeat, 6*time.Second
		start := time.Now()
		require.Equal(r, msgidem.Retried, r.handle(d).Result)
		require.Equal(r, 7*time.Second, time.Since(start))
		require.Equal(r, 3, d.beats())
		require.Zero(r, r.store.calls("extend"))
		require.Equal(r, []string{"nak"}, d.told())
		require.Zero(r, d.delay)
	})
	bubble(t, "but not for ever", func(r *rig) {
		r.own(time.Hour)
		d := message(1)
		d.can = msgidem.CanNak
		start := time.Now()
		r.handle(d)
		require.Equal(r, 11*time.Second, time.Since(start))
	})
}

// A watched delivery looks at the contexts that it is given.
type watched struct {
	*delivery
	look func(ctx context.Context)
}

func (w *watched) Ack(ctx context.Context) error { w.look(ctx); return w.delivery.Ack(ctx) }

func (w *watched) NakAfter(ctx context.Context, d time.Duration) error {
	w.look(ctx)
	return w.delivery.NakAfter(ctx, d)
}

func (w *watched) Term(ctx context.Context, reason string) error {
	w.look(ctx)
	return w.delivery.Term(ctx, reason)
}

func TestContextsOfTheBroker(t *testing.T) {
	for op, result := range map[string]error{"ack": nil, "nak": errDown, "term": idem.Permanent(errDown)} {
		bubble(t, op+" has a deadline and outlives the consumer's context", func(r *rig) {
			ctx, cancel := context.WithCancel(context.WithValue(r.Context(), t, "value"))
			r.fn = func(context.Context, msgidem.Message, idem.Claim) error { cancel(); return result }
			looked := false
			d := &watched{message(1), func(ctx context.Context) {
				looked = true
				require.NoError(r, ctx.Err())
				deadline, ok := ctx.Deadline()
				require.True(r, ok)
				require.Equal(r, 10*time.Second, time.Until(deadline))
				require.Equal(r, "value", ctx.Value(t))
			}}
			r.start().Handle(ctx, d)
			require.True(r, looked)
			require.Equal(r, []string{op}, d.told())
		})
	}
}
