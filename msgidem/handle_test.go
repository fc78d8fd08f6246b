package msgidem_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

func TestHandleOnce(t *testing.T) {
	bubble(t, "a message is run, recorded and then acknowledged", func(r *rig) {
		d := message(1)
		d.hook = func(string) error {
			rec, ok := r.record()
			require.True(r, ok)
			require.Equal(r, idem.Replay, rec.State, "recorded before the broker is told")
			return nil
		}
		out := r.handle(d)
		require.Equal(r, msgidem.Outcome{Result: msgidem.Done, State: idem.Fresh, Ran: true, Attempt: 1}, out)
		require.Equal(r, []string{"ack"}, d.told())
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "a duplicate is acknowledged and not run", func(r *rig) {
		r.handle(message(1))
		d := message(2)
		require.Equal(r, msgidem.Outcome{Result: msgidem.Skipped, State: idem.Replay, Attempt: 2}, r.handle(d))
		require.Equal(r, []string{"ack"}, d.told())
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "two groups run it once each", func(r *rig) {
		other := message(1)
		other.msg.Scope = "mail"
		for range 2 {
			r.handle(message(1))
			r.handle(other)
		}
		require.Equal(r, 2, r.runs)
	})
	bubble(t, "the handler gets the message and a claim with a token", func(r *rig) {
		d := message(1)
		d.msg.Raw = r
		r.fn = func(_ context.Context, m msgidem.Message, c idem.Claim) error {
			require.Equal(r, d.msg, m)
			require.Equal(r, "m1", c.Key)
			require.NotZero(r, c.Token)
			return nil
		}
		r.handle(d)
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "a handler may record the claim itself", func(r *rig) {
		r.fn = func(ctx context.Context, _ msgidem.Message, c idem.Claim) error {
			return r.engine.Complete(ctx, c, idem.Response{Body: []byte("mine")})
		}
		d := message(1)
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		require.Equal(r, []string{"ack"}, d.told())
		rec, _ := r.record()
		require.Equal(r, "mine", string(rec.Response.Body))
	})
	bubble(t, "and goes on for long after it has", func(r *rig) {
		r.fn = func(ctx context.Context, _ msgidem.Message, c idem.Claim) error {
			err := r.engine.Complete(ctx, c, idem.Response{})
			time.Sleep(time.Hour)
			return err
		}
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
	})
	bubble(t, "the record lives as long as the Config says", func(r *rig) {
		r.cfg.TTL = time.Hour
		r.handle(message(1))
		time.Sleep(time.Hour - 1)
		require.Equal(r, msgidem.Skipped, r.handle(message(2)).Result)
		time.Sleep(1)
		require.Equal(r, msgidem.Done, r.handle(message(3)).Result)
	})
}

func TestHandleFailure(t *testing.T) {
	bubble(t, "an error releases the message until its backoff is over", func(r *rig) {
		r.fn = returning(errDown)
		r.cfg.Backoff = func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute }
		d := message(2)
		out := r.handle(d)
		require.ErrorIs(r, out.Err, errDown)
		out.Err = nil
		require.Equal(r, msgidem.Outcome{Result: msgidem.Retried, State: idem.Fresh, Ran: true, Attempt: 2, Delay: 2 * time.Minute}, out)
		require.Equal(r, []string{"nak"}, d.told())
		require.Equal(r, 2*time.Minute, d.delay)
		_, ok := r.record()
		require.False(r, ok, "the claim was given up")
		require.Equal(r, msgidem.Done, r.handle(message(3)).Result)
		require.Equal(r, 2, r.runs)
	})
	bubble(t, "a permanent error is a dead letter, recorded and terminated", func(r *rig) {
		r.fn = returning(fmt.Errorf("pay: %w", idem.Permanent(errDown)))
		d := message(1)
		out := r.handle(d)
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, errDown)
		require.Equal(r, []string{"term"}, d.told())
		require.Equal(r, "pay: it is down", d.reason)
		require.Len(r, r.letters, 1)
		require.Equal(r, d.msg, r.letters[0].Message)
		require.Equal(r, "pay: it is down", r.letters[0].Reason)
		require.Equal(r, 1, r.letters[0].Attempts)
		rec, _ := r.record()
		require.True(r, rec.Response.Failed)
		require.Equal(r, "pay: it is down", string(rec.Response.Body))
	})
	bubble(t, "a failure of an inner operation is not the message's", func(r *rig) {
		_, inner := idem.Do(r.Context(), r.engine, idem.Request{Key: "inner"}, func(context.Context, idem.Claim) (idem.Response, error) {
			return idem.Response{}, idem.Permanent(errDown)
		})
		r.fn = returning(inner, fmt.Errorf("inner: %w", inner))
		require.Equal(r, msgidem.Retried, r.handle(message(1)).Result)
		require.Equal(r, msgidem.Retried, r.handle(message(2)).Result)
	})
	bubble(t, "a redelivered failure is terminated without another letter", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown))
		r.handle(message(1))
		d := message(2)
		out := r.handle(d)
		require.Equal(r, msgidem.Skipped, out.Result)
		var failed *idem.FailedError
		require.ErrorAs(r, out.Err, &failed)
		require.Equal(r, []string{"term"}, d.told())
		require.Equal(r, "it is down", d.reason)
		require.Len(r, r.letters, 1)
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "a panic is a failed attempt", func(r *rig) {
		r.fn = func(context.Context, msgidem.Message, idem.Claim) error { panic("boom") }
		d := message(1)
		out := r.handle(d)
		var panicked *msgidem.PanicError
		require.ErrorAs(r, out.Err, &panicked)
		require.Equal(r, "boom", panicked.Value)
		require.Contains(r, string(panicked.Stack), "handle_test.go")
		require.Equal(r, []string{"nak"}, d.told())
		_, ok := r.record()
		require.False(r, ok)
		require.EqualValues(r, 1, r.handler.Stats().Panics)
	})
	bubble(t, "another payload under one ID is a dead letter", func(r *rig) {
		r.handle(message(1))
		d := message(1)
		d.msg.Payload = []byte("pay 8")
		out := r.handle(d)
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, idem.ErrMismatch)
		require.Equal(r, []string{"term"}, d.told())
		require.Equal(r, "pay 8", string(r.letters[0].Message.Payload))
		require.Equal(r, msgidem.Skipped, r.handle(message(2)).Result, "the record is as it was")
	})
	bubble(t, "unless the ID alone counts", func(r *rig) {
		r.cfg.Fingerprint = msgidem.IDOnly
		r.handle(message(1))
		d := message(1)
		d.msg.Payload = []byte("pay 8")
		require.Equal(r, msgidem.Skipped, r.handle(d).Result)
	})
	bubble(t, "a message without an ID is a dead letter", func(r *rig) {
		d := message(1)
		d.msg.ID = ""
		out := r.handle(d)
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, idem.ErrKey)
		require.ErrorIs(r, r.letters[0].Err, idem.ErrKey)
	})
	bubble(t, "without a hook the message is terminated", func(r *rig) {
		r.cfg.DeadLetter = nil
		r.fn = returning(idem.Permanent(errDown))
		d := message(1)
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, []string{"term"}, d.told())
	})
}

func TestHandleDeadLetterThatIsNotAccepted(t *testing.T) {
	bubble(t, "the message is given back and not run again", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown))
		r.hookErr = fmt.Errorf("no topic")
		for i := range 3 {
			d := message(i + 1)
			out := r.handle(d)
			require.Equal(r, msgidem.Retried, out.Result)
			require.ErrorIs(r, out.Err, msgidem.ErrDeadLetter)
			require.ErrorContains(r, out.Err, "no topic")
			require.Equal(r, []string{"nak"}, d.told())
			_, ok := r.record()
			require.False(r, ok)
		}
		r.hookErr = nil
		d := message(4)
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, []string{"term"}, d.told())
		require.Equal(r, 1, r.runs)
		require.Equal(r, "it is down", r.letters[0].Reason)
		require.EqualValues(r, 3, r.handler.Stats().HookErrors)
	})
	bubble(t, "a panic of the hook is an error of it", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown))
		r.cfg.DeadLetter = func(context.Context, msgidem.DeadLetter) error { panic("boom") }
		d := message(1)
		require.ErrorIs(r, r.handle(d).Err, msgidem.ErrDeadLetter)
		require.Equal(r, []string{"nak"}, d.told())
	})
	bubble(t, "a mismatch does not doom the message whose ID it has", func(r *rig) {
		r.hookErr = errDown
		r.fn = returning(errDown)
		claim := r.own(0)
		other := message(1)
		other.msg.Payload = []byte("pay 8")
		require.ErrorIs(r, r.handle(other).Err, msgidem.ErrDeadLetter)
		require.NoError(r, r.engine.Abandon(r.Context(), claim))
		require.Equal(r, msgidem.Retried, r.handle(message(1)).Result)
		require.Equal(r, msgidem.Done, r.handle(message(2)).Result)
	})
	bubble(t, "a failure that can't be recorded brings the letter again", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown), idem.Permanent(errDown))
		r.store.hook = failing("complete", 1000, errDown)
		d := message(1)
		require.ErrorIs(r, r.handle(d).Err, msgidem.ErrStore)
		require.Equal(r, []string{"nak"}, d.told())
		r.store.hook = nil
		time.Sleep(time.Hour) // the lease is over
		require.Equal(r, msgidem.DeadLettered, r.handle(message(2)).Result)
		require.Len(r, r.letters, 2)
	})
}

func TestHandleAttempts(t *testing.T) {
	always := func(context.Context, msgidem.Message, idem.Claim) error { return errDown }
	for _, counting := range []bool{true, false} {
		bubble(t, fmt.Sprintf("the last attempt makes a dead letter, broker counts: %v", counting), func(r *rig) {
			r.fn, r.cfg.MaxAttempts = always, 3
			for i := range 3 {
				d := message(i + 1)
				if !counting {
					d.msg.Attempt = 0
				}
				out := r.handle(d)
				require.Equal(r, i+1, out.Attempt)
				if i < 2 {
					require.Equal(r, []string{"nak"}, d.told())
					continue
				}
				require.ErrorIs(r, out.Err, msgidem.ErrAttempts)
				require.ErrorIs(r, out.Err, errDown)
				require.Equal(r, []string{"term"}, d.told())
			}
			require.Equal(r, 3, r.letters[0].Attempts)
			require.Equal(r, "pay 7", string(r.letters[0].Message.Payload))
			require.Equal(r, 3, r.runs)
			require.Equal(r, msgidem.Skipped, r.handle(message(4)).Result)
			require.Equal(r, 3, r.runs, "then nothing more")
		})
	}
	bubble(t, "success makes the next failure the first", func(r *rig) {
		r.fn, r.cfg.MaxAttempts, r.cfg.TTL = returning(errDown, nil, errDown), 2, time.Second
		d := message(0)
		require.Equal(r, msgidem.Retried, r.handle(d).Result)
		require.Equal(r, msgidem.Done, r.handle(d).Result)
		time.Sleep(time.Second)
		require.Equal(r, msgidem.Retried, r.handle(d).Result)
	})
	bubble(t, "deliveries while another consumer is at work do not count", func(r *rig) {
		r.cfg.MaxAttempts, r.cfg.Wait = 2, -1
		claim := r.own(0)
		for i := range 5 {
			require.ErrorIs(r, r.handle(message(i+1)).Err, idem.ErrInProgress)
		}
		require.NoError(r, r.engine.Abandon(r.Context(), claim))
		out := r.handle(message(6))
		require.Equal(r, msgidem.Done, out.Result)
		require.Equal(r, 1, out.Attempt)
	})
	bubble(t, "nor do those while the store is down", func(r *rig) {
		r.cfg.MaxAttempts = 2
		r.store.hook = failing("begin", 5, errDown)
		for i := range 5 {
			d := message(i + 1)
			require.ErrorIs(r, r.handle(d).Err, msgidem.ErrStore)
			require.Equal(r, []string{"nak"}, d.told())
		}
		require.Equal(r, 1, r.handle(message(6)).Attempt)
	})
	bubble(t, "a function that panics on a message does not do so for ever", func(r *rig) {
		r.cfg.Fingerprint = func(msgidem.Message) idem.Fingerprint { panic("boom") }
		r.cfg.MaxAttempts = 2
		require.Equal(r, msgidem.Retried, r.handle(message(1)).Result)
		d := message(2)
		require.Equal(r, msgidem.DeadLettered, r.handle(d).Result)
		require.Equal(r, []string{"term"}, d.told())
	})
	bubble(t, "the function for the backoff may panic or return nonsense", func(r *rig) {
		r.fn = always
		r.cfg.Backoff = func(attempt int) time.Duration {
			if attempt == 1 {
				panic("boom")
			}
			return -time.Hour
		}
		require.InDelta(r, time.Second, r.handle(message(1)).Delay, float64(time.Second/2))
		out := r.handle(message(2))
		require.Zero(r, out.Delay)
		require.Equal(r, msgidem.Retried, out.Result)
	})
}
