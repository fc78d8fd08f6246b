package msgidem_test

import (
	"context"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// once returns a function that calls do the first time, and then does nothing.
func once(do func() error) func() error {
	calls := 0
	return func() error {
		if calls++; calls == 1 {
			return do()
		}
		return nil
	}
}

// A broker that can neither nak nor deliver again by itself: what Run does not keep in hand is lost.
func TestRunKeepsInHand(t *testing.T) {
	boom := func() error { panic("boom") }
	for name, c := range map[string]struct {
		spoil func(r *rig, d *delivery)
		told  []string
	}{
		"its handler exits": {told: []string{"ack"}, spoil: func(r *rig, _ *delivery) {
			exit := once(func() error { runtime.Goexit(); return nil })
			r.fn = func(context.Context, msgidem.Message, idem.Claim) error { return exit() }
		}},
		"its acknowledgement fails": {told: []string{"ack", "ack"}, spoil: func(_ *rig, d *delivery) {
			fail := once(func() error { return errDown })
			d.hook = func(string) error { return fail() }
		}},
		"its acknowledgement panics": {told: []string{"ack", "ack"}, spoil: func(_ *rig, d *delivery) {
			fail := once(boom)
			d.hook = func(string) error { return fail() }
		}},
		"its acknowledgement exits": {told: []string{"ack", "ack"}, spoil: func(_ *rig, d *delivery) {
			exit := once(func() error { runtime.Goexit(); return nil })
			d.hook = func(string) error { return exit() }
		}},
		"the store panics": {told: []string{"ack"}, spoil: func(r *rig, _ *delivery) {
			fail := once(boom)
			r.store.hook = func(context.Context, string, int) error { return fail() }
		}},
		"its handler loses the claim": {told: []string{"ack"}, spoil: func(r *rig, _ *delivery) {
			r.store.hook = failing("complete", 1, idem.ErrClaimLost)
		}},
	} {
		bubble(t, "a message when "+name, func(r *rig) {
			r.cfg.Workers = 1
			d, next := message(0), message(0)
			d.can, d.msg.AckWait = 0, 0
			next.can, next.msg.AckWait, next.msg.ID = 0, 0, "m2"
			c.spoil(r, d)
			require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, d, next)))
			require.Equal(r, c.told, d.told())
			require.Equal(r, []string{"ack"}, next.told(), "the worker goes on")
			rec, _ := r.record()
			require.Equal(r, idem.Replay, rec.State)
		})
	}
	bubble(t, "until it is a dead letter, whose outcome is known although the handler exits", func(r *rig) {
		r.cfg.MaxAttempts = 2
		r.fn = func(context.Context, msgidem.Message, idem.Claim) error { runtime.Goexit(); return nil }
		d := message(0)
		d.can, d.msg.AckWait = 0, 0
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, d)))
		require.Len(r, r.letters, 1)
		require.Equal(r, []string{"ack"}, d.told())
		require.EqualValues(r, 2, r.handler.Stats().Deliveries)
	})
	bubble(t, "no longer than until it is stopped", func(r *rig) {
		d := message(0)
		d.can, d.msg.AckWait = 0, 0
		d.hook = func(string) error { return errDown }
		ctx, cancel := context.WithTimeout(r.Context(), 59500*time.Millisecond)
		defer cancel()
		start := time.Now()
		require.NoError(r, r.start().Run(ctx, newSource(nil, d)))
		require.Equal(r, 59500*time.Millisecond, time.Since(start))
		require.Len(r, d.told(), 60)
	})
	bubble(t, "nothing that the broker brings again", func(r *rig) {
		d := message(0)
		d.can = msgidem.CanHeartbeat
		d.hook = func(string) error { return errDown }
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, d)))
		require.Equal(r, []string{"ack"}, d.told())
		require.EqualValues(r, 1, r.handler.Stats().Left)
	})
	bubble(t, "nothing that is no delivery", func(r *rig) {
		var none *delivery
		d := message(1)
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, none, d)))
		require.Equal(r, []string{"ack"}, d.told())
	})
}

func TestRunKeepsPlacesOfWhatItHolds(t *testing.T) {
	bubble(t, "so that no more run at a time than there are workers", func(r *rig) {
		const workers = 3
		list, all := messages(60)
		for _, d := range all {
			d.can, d.msg.AckWait = 0, 0
			fail := once(func() error { return errDown })
			d.hook = func(string) error { return fail() }
		}
		var running, most atomic.Int32
		r.cfg.Workers = workers
		r.fn = func(context.Context, msgidem.Message, idem.Claim) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second)
			return nil
		}
		r.store.hook = func(_ context.Context, op string, n int) error { // what is handled again takes its time as well
			if op == "begin" {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
			}
			return nil
		}
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, list...)))
		require.EqualValues(r, workers, most.Load())
		for _, d := range all {
			require.Equal(r, []string{"ack", "ack"}, d.told())
		}
	})
}

// The end of a source is not a stop: nothing is cut short until the context ends as well.
func TestRunAfterItsSourceHasEnded(t *testing.T) {
	bubble(t, "gives handlers the time that they need", func(r *rig) {
		r.fn, r.cfg.DrainTimeout = lasting(time.Hour), time.Second
		start := time.Now()
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, message(1))))
		require.Equal(r, time.Hour, time.Since(start))
	})
	bubble(t, "drains when its context ends", func(r *rig) {
		var cause error
		r.fn, r.cfg.DrainTimeout = untilLost(new(time.Duration), &cause), time.Second
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		require.NoError(r, r.start().Run(ctx, newSource(io.EOF, message(1))))
		require.Equal(r, time.Minute+time.Second, time.Since(start))
		require.ErrorIs(r, cause, msgidem.ErrStopped)
	})
}

func TestRunLeavesWhatItHoldsWithoutAPause(t *testing.T) {
	bubble(t, "once it was stopped", func(r *rig) {
		r.cfg.Backoff, r.cfg.MaxAttempts = func(int) time.Duration { return 0 }, 1000
		for i := range 50 { // it was a matter of chance
			d := message(0)
			d.can = 0
			ctx, cancel := context.WithCancel(r.Context())
			r.fn = func(context.Context, msgidem.Message, idem.Claim) error { cancel(); return errDown }
			require.NoError(r, r.start().Run(ctx, newSource(nil, d)))
			cancel()
			require.Equal(r, i+1, r.runs)
		}
	})
}

func TestRunLeavesWhatItHoldsWhenItsSourceFails(t *testing.T) {
	bubble(t, "without waiting for it", func(r *rig) {
		r.fn = returning(errDown)
		r.cfg.Backoff = func(int) time.Duration { return time.Hour }
		d := message(0)
		d.can = 0
		start := time.Now()
		require.ErrorIs(r, r.start().Run(r.Context(), newSource(errDown, d)), errDown)
		require.Zero(r, time.Since(start))
		require.Equal(r, 1, r.runs)
	})
}
