package msgidem_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A source delivers what it is given, and then ends, or blocks if it shall.
type source struct {
	mu       sync.Mutex
	list     []msgidem.Delivery
	end      error         // after the last one; nil blocks until ctx ends
	inside   atomic.Int32  // calls of Next
	together atomic.Bool   // there were two at a time
	all      chan struct{} // closed when the last one was delivered
}

func newSource(end error, list ...msgidem.Delivery) *source {
	return &source{list: list, end: end, all: make(chan struct{})}
}

func (s *source) Next(ctx context.Context) (msgidem.Delivery, error) {
	if s.inside.Add(1) > 1 {
		s.together.Store(true)
	}
	defer s.inside.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) > 0 {
		d := s.list[0]
		s.list = s.list[1:]
		if len(s.list) == 0 {
			close(s.all)
		}
		return d, nil
	}
	if s.end != nil {
		return nil, s.end
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// messages are n deliveries of n messages.
func messages(n int) (list []msgidem.Delivery, all []*delivery) {
	for i := range n {
		d := message(1)
		d.msg.ID = fmt.Sprint("m", i)
		list, all = append(list, d), append(all, d)
	}
	return list, all
}

func TestRun(t *testing.T) {
	bubble(t, "handles everything, so many at a time, and ends with its source", func(r *rig) {
		list, all := messages(100)
		var running, most atomic.Int32
		h, err := msgidem.New(r.engine, func(context.Context, msgidem.Message, idem.Claim) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		}, msgidem.Config{Workers: 10})
		require.NoError(r, err)
		src := newSource(io.EOF, list...)
		start := time.Now()
		require.NoError(r, h.Run(r.Context(), src))
		require.Equal(r, 10*time.Second, time.Since(start))
		require.EqualValues(r, 10, most.Load())
		require.False(r, src.together.Load())
		for _, d := range all {
			require.Equal(r, []string{"ack"}, d.told())
		}
		require.EqualValues(r, 100, h.Stats().Done)
	})
	bubble(t, "handles the next while the broker confirms the last", func(r *rig) {
		const workers, n = 2, 20
		list, all := messages(n)
		var running, inHand, mostRunning, mostInHand atomic.Int32
		for _, d := range all {
			d.hook = func(string) error {
				time.Sleep(time.Second)
				inHand.Add(-1)
				return nil
			}
		}
		h, err := msgidem.New(r.engine, func(context.Context, msgidem.Message, idem.Claim) error {
			mostInHand.Store(max(mostInHand.Load(), inHand.Add(1)))
			mostRunning.Store(max(mostRunning.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		}, msgidem.Config{Workers: workers})
		require.NoError(r, err)
		start := time.Now()
		require.NoError(r, h.Run(r.Context(), newSource(io.EOF, list...)))
		require.Equal(r, (n/workers+1)*time.Second, time.Since(start))
		require.EqualValues(r, workers, mostRunning.Load())
		require.LessOrEqual(r, mostInHand.Load(), int32(2*workers), "bounded as well")
	})
	bubble(t, "one worker acknowledges before it goes on", func(r *rig) {
		list, all := messages(3)
		var log []string
		for _, d := range all {
			d.hook = func(op string) error {
				time.Sleep(time.Second)
				log = append(log, op+" "+d.msg.ID)
				return nil
			}
		}
		h, err := msgidem.New(r.engine, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			log = append(log, "run "+m.ID)
			return nil
		}, msgidem.Config{Workers: 1})
		require.NoError(r, err)
		require.NoError(r, h.Run(r.Context(), newSource(io.EOF, list...)))
		require.Equal(r, []string{"run m0", "ack m0", "run m1", "ack m1", "run m2", "ack m2"}, log)
	})
	bubble(t, "returns the error of its source after what is in hand", func(r *rig) {
		r.fn = lasting(time.Second)
		d := message(1)
		require.ErrorIs(r, r.start().Run(r.Context(), newSource(errDown, d)), errDown)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "a source that panics has failed", func(r *rig) {
		var panicked *msgidem.PanicError
		require.ErrorAs(r, r.start().Run(r.Context(), (*source)(nil)), &panicked)
	})
	bubble(t, "a source that returns nothing has failed", func(r *rig) {
		require.ErrorContains(r, r.start().Run(r.Context(), newSource(nil, nil)), "no delivery")
	})
	bubble(t, "handlers that panic or exit leave it alive", func(r *rig) {
		list, all := messages(50)
		h, err := msgidem.New(r.engine, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			switch m.ID[len(m.ID)-1] {
			case '0':
				panic("boom")
			case '1':
				runtime.Goexit()
			}
			return nil
		}, msgidem.Config{Workers: 3})
		require.NoError(r, err)
		require.NoError(r, h.Run(r.Context(), newSource(io.EOF, list...)))
		for i, d := range all {
			if i%10 < 2 {
				require.Equal(r, []string{"nak"}, d.told())
			} else {
				require.Equal(r, []string{"ack"}, d.told())
			}
		}
		st := h.Stats()
		require.EqualValues(r, 10, st.Panics)
		require.EqualValues(r, 10, st.Failures)
		require.EqualValues(r, 40, st.Done)
		require.EqualValues(r, 10, st.Retried)
		require.Zero(r, st.Running)
	})
	bubble(t, "a delivery that can't be given back is handled again in place", func(r *rig) {
		list, all := messages(2)
		fail, ids := returning(errDown, errDown), []string(nil)
		for _, d := range all {
			d.can = msgidem.CanHeartbeat
		}
		h, err := msgidem.New(r.engine, func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
			ids = append(ids, m.ID)
			return fail(ctx, m, c)
		}, msgidem.Config{Workers: 1, MaxAttempts: 3})
		require.NoError(r, err)
		require.NoError(r, h.Run(r.Context(), newSource(io.EOF, list...)))
		require.Equal(r, []string{"m0", "m0", "m0", "m1"}, ids, "one worker takes no other one meanwhile")
		for _, d := range all {
			require.Equal(r, []string{"ack"}, d.told())
		}
	})
	bubble(t, "until it is a dead letter", func(r *rig) {
		r.fn, r.cfg.MaxAttempts = returning(errDown, errDown, errDown), 3
		d := message(0)
		d.can = 0
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, d)))
		require.Len(r, r.letters, 1)
		require.Equal(r, []string{"ack"}, d.told())
	})
}

func TestRunStops(t *testing.T) {
	// stopped runs a consumer, stops it when all is delivered, and returns how long it took from then.
	stopped := func(r *rig, after time.Duration, list ...msgidem.Delivery) (time.Duration, error) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		src := newSource(nil, list...)
		end := make(chan error)
		go func() { end <- r.start().Run(ctx, src) }()
		<-src.all
		time.Sleep(after)
		cancel()
		start := time.Now()
		err := <-end
		return time.Since(start), err
	}
	bubble(t, "at once when there is nothing in hand", func(r *rig) {
		took, err := stopped(r, time.Second, message(1))
		require.NoError(r, err)
		require.Zero(r, took)
	})
	bubble(t, "handlers in hand finish as if nothing had happened", func(r *rig) {
		r.fn = func(ctx context.Context, _ msgidem.Message, _ idem.Claim) error {
			time.Sleep(20 * time.Second)
			return ctx.Err()
		}
		d := message(1)
		took, err := stopped(r, time.Second, d)
		require.NoError(r, err)
		require.Equal(r, 19*time.Second, took)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "their contexts end after the drain timeout, which is no failure of theirs", func(r *rig) {
		var after time.Duration
		var cause error
		r.fn, r.cfg.DrainTimeout, r.cfg.MaxAttempts = untilLost(&after, &cause), 5*time.Second, 1
		d := message(1)
		took, err := stopped(r, time.Second, d)
		require.NoError(r, err)
		require.Equal(r, 5*time.Second, took)
		require.ErrorIs(r, cause, msgidem.ErrStopped)
		require.Equal(r, []string{"nak"}, d.told())
		require.Zero(r, d.delay, "another consumer can have it at once")
		require.Empty(r, r.letters)
		_, ok := r.record()
		require.False(r, ok)
	})
	bubble(t, "one that does not heed its context is reported, and settles its message later", func(r *rig) {
		r.fn = lasting(time.Hour)
		d := message(1)
		took, err := stopped(r, time.Second, d)
		require.ErrorIs(r, err, msgidem.ErrStuck)
		require.ErrorContains(r, err, "1 of them")
		require.Equal(r, 35*time.Second, took)
		time.Sleep(time.Hour)
		require.Equal(r, []string{"ack"}, d.told())
	})
	bubble(t, "duplicates that wait are given back at once", func(r *rig) {
		r.own(0)
		r.cfg.Wait = time.Hour
		d := message(1)
		took, err := stopped(r, time.Second, d)
		require.NoError(r, err)
		require.Zero(r, took)
		require.Equal(r, []string{"nak"}, d.told())
	})
	bubble(t, "one that is held for its next attempt is left", func(r *rig) {
		r.fn = returning(errDown)
		r.cfg.Backoff = func(int) time.Duration { return time.Hour }
		d := message(0)
		d.can = 0
		took, err := stopped(r, time.Second, d)
		require.NoError(r, err)
		require.Zero(r, took)
		require.Empty(r, d.calls)
	})
	t.Run("nothing is begun when it was stopped before", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d := message(1)
		require.NoError(t, r.start().Run(ctx, newSource(nil, d)))
		require.Empty(t, d.calls)
	})
	t.Run("no goroutine is left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // which fails if one is
			r := newRig(t, idem.Config{})
			list, _ := messages(100)
			require.NoError(t, r.start().Run(t.Context(), newSource(io.EOF, list...)))
		})
	})
}

func TestRunAfterAHandlerHasEndedItsOnlyWorker(t *testing.T) {
	bubble(t, "goes on", func(r *rig) {
		r.cfg.Workers = 1
		list, all := messages(2)
		r.fn = func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
			if m.ID == "m0" {
				runtime.Goexit()
			}
			return nil
		}
		require.NoError(r, r.start().Run(r.Context(), newSource(io.EOF, list...)))
		require.Equal(r, []string{"nak"}, all[0].told())
		require.Equal(r, []string{"ack"}, all[1].told())
	})
}
