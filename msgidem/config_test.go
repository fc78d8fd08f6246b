package msgidem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

func TestNew(t *testing.T) {
	engine := newRig(t, idem.Config{}).engine
	fn := returning()
	for _, c := range []struct {
		cfg  msgidem.Config
		says string
	}{
		{msgidem.Config{Workers: -1}, "Config.Workers is -1, want 0 to 65536"},
		{msgidem.Config{Workers: 1 << 17}, "Config.Workers is 131072"},
		{msgidem.Config{MaxAttempts: -1}, "Config.MaxAttempts is -1"},
		{msgidem.Config{MaxDeliveries: -1}, "Config.MaxDeliveries is -1, want zero, or MaxAttempts (5) or more"},
		{msgidem.Config{MaxAttempts: 3, MaxDeliveries: 2}, "Config.MaxDeliveries is 2, want zero, or MaxAttempts (3) or more"},
		{msgidem.Config{Lease: -1}, "Config.Lease is -1ns"},
		{msgidem.Config{TTL: -1}, "Config.TTL is -1ns"},
		{msgidem.Config{DrainTimeout: -1}, "Config.DrainTimeout is -1ns"},
	} {
		_, err := msgidem.New(engine, fn, c.cfg)
		require.ErrorContains(t, err, c.says)
	}
	_, err := msgidem.New(nil, fn, msgidem.Config{})
	require.ErrorContains(t, err, "nil store")
	_, err = msgidem.New(engine, nil, msgidem.Config{})
	require.ErrorContains(t, err, "nil handler")
}

func TestDefaultBackoff(t *testing.T) {
	for attempt, most := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, math.MaxInt: time.Minute,
	} {
		for range 100 {
			d := msgidem.DefaultBackoff(attempt)
			require.LessOrEqual(t, d, most)
			require.Greater(t, d, most*3/4-1)
		}
	}
}

func TestOutcomeHook(t *testing.T) {
	bubble(t, "is told of each delivery after the broker was", func(r *rig) {
		d := message(1)
		var got []msgidem.Outcome
		r.cfg.OnOutcome = func(_ context.Context, m msgidem.Message, o msgidem.Outcome) {
			require.Equal(r, d.msg, m)
			require.NotEmpty(r, d.told())
			got = append(got, o)
		}
		first := r.handle(d)
		second := r.handle(d)
		require.Equal(r, []msgidem.Outcome{first, second}, got)
	})
	bubble(t, "may call the handler, and panic", func(r *rig) {
		calls := 0
		r.cfg.OnOutcome = func(ctx context.Context, _ msgidem.Message, _ msgidem.Outcome) {
			if calls++; calls == 1 {
				require.Equal(r, msgidem.Skipped, r.handler.Handle(ctx, message(2)).Result)
				r.handler.Stats()
			}
			panic("boom")
		}
		require.Equal(r, msgidem.Done, r.handle(message(1)).Result)
		require.EqualValues(r, 2, r.handler.Stats().HookErrors)
	})
}

func TestLogs(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		bubble(t, "name messages at Debug only: "+level.String(), func(r *rig) {
			var log bytes.Buffer
			r.cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))
			r.fn = returning(errDown, idem.Permanent(errDown))
			for i := range 3 {
				r.handle(message(i + 1))
			}
			other := message(1)
			other.msg.Payload = nil
			r.handle(other)
			r.handle(message(9))
			require.Contains(r, log.String(), "level=INFO msg=\"msgidem: message comes again\" scope=billing")
			require.Contains(r, log.String(), "level=WARN msg=\"msgidem: message will never be handled\" scope=billing")
			require.NotContains(r, log.String(), "pay 7")
			if level == slog.LevelInfo {
				require.NotContains(r, log.String(), "m1")
			} else {
				require.Contains(r, log.String(), "level=DEBUG msg=\"msgidem: delivery\" id=m1")
				require.Contains(r, log.String(), "result=skipped")
			}
		})
	}
}

// A dead letter that nobody takes is gone, so that its name must not be.
func TestLogOfADeadLetterThatNoHookTakes(t *testing.T) {
	bubble(t, "names it", func(r *rig) {
		var log bytes.Buffer
		r.cfg.Logger, r.cfg.DeadLetter = slog.New(slog.NewTextHandler(&log, nil)), nil
		r.fn = returning(idem.Permanent(errDown))
		r.handle(message(1))
		require.Contains(r, log.String(), `no hook takes it" id=m1 scope=billing`)
	})
}

func TestStats(t *testing.T) {
	bubble(t, "each delivery is in one of its five results", func(r *rig) {
		r.fn = returning(errDown, nil)
		r.handle(message(1))
		r.handle(message(2))
		r.handle(message(3))
		other := message(1)
		other.msg.Payload = nil
		r.handle(other)
		require.Equal(r, msgidem.Stats{
			Deliveries: 4, Done: 1, Skipped: 1, Retried: 1, DeadLettered: 1, Runs: 2, Failures: 1, Mismatched: 1,
		}, r.handler.Stats())
	})
}

func TestResultString(t *testing.T) {
	require.Equal(t, "done skipped retried dead-lettered left Result(9)",
		fmt.Sprint(msgidem.Done, msgidem.Skipped, msgidem.Retried, msgidem.DeadLettered, msgidem.Left, msgidem.Result(9)))
}

func TestReasonIsOneLine(t *testing.T) {
	bubble(t, "for headers", func(r *rig) {
		r.fn = returning(idem.Permanent(errors.New("first\r\nsecond\t" + string(bytes.Repeat([]byte("é"), 1000)))))
		d := message(1)
		r.handle(d)
		require.Regexp(r, `^first second é+…$`, d.reason)
		require.LessOrEqual(r, len(d.reason), 1<<10+3)
		require.Equal(r, d.reason, r.letters[0].Reason)
	})
}

// ids yields messages of these IDs, and then err.
func ids(err error, payload []byte, list ...string) iter.Seq2[msgidem.Message, error] {
	return func(yield func(msgidem.Message, error) bool) {
		for _, id := range list {
			if !yield(msgidem.Message{Scope: "billing", ID: id, Payload: payload}, nil) {
				return
			}
		}
		if err != nil {
			yield(msgidem.Message{}, err)
		}
	}
}

func TestWarm(t *testing.T) {
	bubble(t, "what was handled before is not run again", func(r *rig) {
		n, err := r.start().Warm(r.Context(), ids(nil, []byte("pay 7"), "m0", "m1", "m1", "m2"))
		require.NoError(r, err)
		require.Equal(r, 3, n)
		require.Equal(r, msgidem.Skipped, r.handle(message(1)).Result)
	})
	bubble(t, "from IDs alone when they alone count", func(r *rig) {
		r.cfg.Fingerprint = msgidem.IDOnly
		n, err := r.start().Warm(r.Context(), ids(nil, nil, "m1"))
		require.NoError(r, err)
		require.Equal(r, 1, n)
		require.Equal(r, msgidem.Skipped, r.handle(message(1)).Result)
	})
	bubble(t, "and not otherwise: each message would be a mismatch", func(r *rig) {
		_, err := r.start().Warm(r.Context(), ids(nil, nil, "m1"))
		require.ErrorContains(r, err, "message 1: no payload: give it, or set Config.Fingerprint to IDOnly")
	})
	bubble(t, "stops at the first error and says where", func(r *rig) {
		n, err := r.start().Warm(r.Context(), ids(errDown, []byte{}, "m0", "m2"))
		require.ErrorIs(r, err, errDown)
		require.ErrorContains(r, err, "message 3")
		require.Equal(r, 2, n)
		n, err = r.handler.Warm(r.Context(), ids(nil, []byte("x"), "m3", "m0", "m4"))
		require.ErrorIs(r, err, idem.ErrMismatch)
		require.ErrorContains(r, err, "message 2")
		require.Equal(r, 1, n)
		r.own(0)
		_, err = r.handler.Warm(r.Context(), ids(nil, []byte("pay 7"), "m1"))
		require.ErrorIs(r, err, idem.ErrInProgress)
		_, err = r.handler.Warm(r.Context(), ids(nil, []byte{}, ""))
		require.ErrorIs(r, err, idem.ErrKey)
	})
	bubble(t, "ends with its context", func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		_, err := r.start().Warm(ctx, ids(nil, []byte{}, "m1"))
		require.ErrorIs(r, err, context.Canceled)
	})
}

func TestLogsTellOfRetriesForAStoreThatIsDown(t *testing.T) {
	bubble(t, "at Warn", func(r *rig) {
		var log bytes.Buffer
		r.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r.store.hook = failing("begin", 1, errDown)
		r.handle(message(1))
		require.Contains(r, log.String(), "level=WARN msg=\"msgidem: store failed; message comes again\" scope=billing")
	})
}

func TestWarmClaimsForNoLongerThanTheLease(t *testing.T) {
	bubble(t, "of the Config", func(r *rig) {
		r.cfg.Lease = 5 * time.Second
		r.store.hook = failing("complete", 1, errDown)
		_, err := r.start().Warm(r.Context(), ids(nil, []byte("pay 7"), "m1"))
		require.ErrorIs(r, err, errDown)
		time.Sleep(5*time.Second + 1)
		n, err := r.handler.Warm(r.Context(), ids(nil, []byte("pay 7"), "m1"))
		require.NoError(r, err)
		require.Equal(r, 1, n)
	})
}
