package msgidem_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// What a broker counted while other processes had a message is no reason to refuse it a run.
func TestAttemptsInOtherProcesses(t *testing.T) {
	bubble(t, "a message that came to them is run, and done", func(r *rig) {
		r.cfg.MaxAttempts = 3
		d := message(30)
		out := r.handle(d)
		require.Equal(r, msgidem.Done, out.Result)
		require.Equal(r, 30, out.Attempt)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "or fails, and is a dead letter after that one run", func(r *rig) {
		r.fn, r.cfg.MaxAttempts = returning(errDown), 3
		out := r.handle(message(4))
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, msgidem.ErrAttempts)
		require.ErrorIs(r, out.Err, errDown)
		require.Equal(r, 1, r.runs)
	})
	bubble(t, "one that came in an outage, before a restart, is run", func(r *rig) {
		r.store.hook = failing("begin", 5, errDown)
		for i := range 5 {
			require.ErrorIs(r, r.handle(message(i+1)).Err, msgidem.ErrStore)
		}
		r.handler = nil
		require.Equal(r, msgidem.Done, r.handle(message(6)).Result)
		require.Empty(r, r.letters)
	})
	bubble(t, "one that was cut short by a stop is run", func(r *rig) {
		r.cfg.MaxAttempts, r.cfg.DrainTimeout = 1, time.Second
		r.fn = untilLost(new(time.Duration), new(error))
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		require.NoError(r, r.start().Run(ctx, newSource(nil, message(1))))
		r.handler, r.fn = nil, returning()
		require.Equal(r, msgidem.Done, r.handle(message(2)).Result)
	})
}

// While the store is down all processes use up deliveries, so that a message must not come as often as it can.
func TestOutageBackoffGrows(t *testing.T) {
	bubble(t, "with each delivery to this process", func(r *rig) {
		var asked []int
		r.cfg.Backoff = func(attempt int) time.Duration { asked = append(asked, attempt); return time.Second }
		r.store.hook = failing("begin", 3, errDown)
		for i := range 3 {
			r.handle(message(i + 1))
		}
		require.Equal(r, []int{1, 2, 3}, asked)
		require.Equal(r, 1, r.handle(message(4)).Attempt)
	})
	bubble(t, "of a broker that does not count as well", func(r *rig) {
		var asked []int
		r.cfg.Backoff = func(attempt int) time.Duration { asked = append(asked, attempt); return time.Second }
		r.store.hook = failing("begin", 3, errDown)
		for range 3 {
			r.handle(message(0))
		}
		require.Equal(r, []int{1, 2, 3}, asked)
		require.Equal(r, 1, r.handle(message(0)).Attempt)
	})
}

func TestMaxDeliveries(t *testing.T) {
	for _, c := range []struct {
		name              string
		attempts, most    int // of the Config
		last              int // delivery that is run
		unrun, unrunTimes int
	}{
		{name: "by default, ten times the attempts", attempts: 3, last: 30},
		{name: "as given", attempts: 3, most: 4, last: 4},
		{name: "no more than the attempts", attempts: 3, most: 3, last: 3},
		{name: "none, as good as", most: math.MaxInt, last: math.MaxInt - 1},
		{name: "not overflowing", attempts: math.MaxInt, last: math.MaxInt - 100},
		{name: "less what did not get as far as to the handler here", attempts: 3, most: 4, unrunTimes: 2, last: 6},
	} {
		bubble(t, "guard against a message that kills its process: "+c.name, func(r *rig) {
			r.cfg.MaxAttempts, r.cfg.MaxDeliveries = c.attempts, c.most
			r.store.hook = failing("begin", c.unrunTimes, errDown)
			for i := range c.unrunTimes {
				r.handle(message(i + 1))
			}
			if c.last < math.MaxInt-1 && c.attempts < math.MaxInt {
				d := message(c.last + 1)
				out := r.handle(d)
				require.ErrorIs(r, out.Err, msgidem.ErrAttempts)
				require.ErrorContains(r, out.Err, "the broker delivered the message")
				require.Equal(r, []string{"term"}, d.told())
				require.Zero(r, r.runs)
				require.Len(r, r.letters, 1)
				_, err := r.engine.Forget(r.Context(), "billing", "m1")
				require.NoError(r, err)
				r.handler = nil // and its history with it
				r.store.hook = failing("begin", r.store.calls("begin")+c.unrunTimes, errDown)
				for i := range c.unrunTimes {
					r.handle(message(i + 1))
				}
			}
			require.Equal(r, msgidem.Done, r.handle(message(c.last)).Result)
		})
	}
}

// A message that was a dead letter and is published again, after what was wrong was mended, begins anew.
func TestPublishedAgain(t *testing.T) {
	bubble(t, "after its unknown outcome was resolved", func(r *rig) {
		engine := newRig(r.T, idem.Config{OnLeaseExpiry: idem.Hold}).engine
		r.engine, r.store.Store, r.cfg.MaxAttempts = engine, engine, 3
		r.own(time.Second)
		time.Sleep(time.Minute)
		for i := range 3 {
			r.handle(message(i + 1))
		}
		require.Len(r, r.letters, 1)
		_, err := engine.Forget(r.Context(), "billing", "m1")
		require.NoError(r, err)
		r.fn = returning(errDown)
		out := r.handle(message(1))
		require.Equal(r, msgidem.Retried, out.Result, "the first of three attempts: %v", out.Err)
		require.Equal(r, 1, out.Attempt)
	})
	bubble(t, "after its last delivery", func(r *rig) {
		r.fn = returning(errDown, errDown, errDown, errDown, errDown)
		for i := range 4 {
			d := message(i + 1)
			d.msg.Last = i == 3
			r.handle(d)
		}
		require.Len(r, r.letters, 1)
		out := r.handle(message(1))
		require.Equal(r, msgidem.Retried, out.Result, "%v", out.Err)
		require.Equal(r, 1, out.Attempt)
	})
	bubble(t, "but a mismatch does not make the message forget whose ID it has", func(r *rig) {
		r.fn, r.cfg.MaxAttempts = returning(errDown, errDown), 2
		require.Equal(r, msgidem.Retried, r.handle(message(0)).Result)
		claim := r.own(0)
		other := message(0)
		other.msg.Payload = []byte("pay 8")
		require.Equal(r, msgidem.DeadLettered, r.handle(other).Result)
		require.NoError(r, r.engine.Abandon(r.Context(), claim))
		out := r.handle(message(0))
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.Equal(r, 2, out.Attempt)
	})
}

func TestLetterWhoseFailureIsNotRecorded(t *testing.T) {
	bubble(t, "keeps the message from being run again", func(r *rig) {
		r.fn = returning(idem.Permanent(errDown))
		r.store.hook = failing("complete", 1000, errDown)
		require.ErrorIs(r, r.handle(message(1)).Err, msgidem.ErrStore)
		r.store.hook = nil
		time.Sleep(time.Hour) // the lease is over
		out := r.handle(message(2))
		require.Equal(r, msgidem.DeadLettered, out.Result)
		require.ErrorIs(r, out.Err, errDown)
		require.Equal(r, 1, r.runs)
	})
}

func TestWhatIsNoAttempt(t *testing.T) {
	bubble(t, "one that was cut short by a stop", func(r *rig) {
		ctx, stop := context.WithCancelCause(r.Context())
		r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			stop(msgidem.ErrStopped)
			return context.Cause(ctx)
		}
		require.Equal(r, msgidem.Retried, r.start().Handle(ctx, message(1)).Result)
		r.fn = returning()
		require.Equal(r, 1, r.handle(message(2)).Attempt)
	})
	bubble(t, "one whose claim was lost", func(r *rig) {
		r.fn = untilLost(new(time.Duration), new(error))
		r.store.hook = failing("extend", 1, idem.ErrClaimLost)
		require.Equal(r, msgidem.Left, r.handle(message(1)).Result)
		r.fn = returning()
		require.Equal(r, 1, r.handle(message(2)).Attempt)
	})
	bubble(t, "one of a message that another process has done since, and that is published again", func(r *rig) {
		r.fn = returning(errDown, errDown)
		require.Equal(r, msgidem.Retried, r.handle(message(0)).Result)
		require.NoError(r, r.engine.Complete(r.Context(), r.own(0), idem.Response{}))
		require.Equal(r, msgidem.Skipped, r.handle(message(0)).Result)
		_, err := r.engine.Forget(r.Context(), "billing", "m1")
		require.NoError(r, err)
		require.Equal(r, 1, r.handle(message(0)).Attempt)
	})
}
