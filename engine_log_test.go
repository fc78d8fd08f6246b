package idem_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// Nobody calls when an owner has died: the logger is told, of all that happened at a time in one line, and of no keys.
func TestLogger(t *testing.T) {
	for policy, want := range map[idem.LeasePolicy]string{
		idem.TakeOver: "the operations may run again",
		idem.Hold:     "somebody has to resolve or forget them",
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			e, err := idem.New(idem.Config{OnLeaseExpiry: policy, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			var out idem.Outcome
			for _, key := range []string{"secret-1", "secret-2", "completed"} {
				out, err = e.Begin(t.Context(), idem.Request{Key: key, Lease: time.Minute})
				require.NoError(t, err)
				if key == "completed" {
					require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{}))
				}
			}
			time.Sleep(61 * time.Second)
			out, err = e.Begin(t.Context(), idem.Request{Key: "later"})
			require.NoError(t, err)
			require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{TTL: time.Second}))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, e.Close())
			require.Contains(t, log.String(), want)
			require.Contains(t, log.String(), "claims=2\n")
			require.NotContains(t, log.String(), "secret")
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
		})
	}
}

// handle is a handler of log records.
type handle func()

func (h handle) Enabled(context.Context, slog.Level) bool  { return true }
func (h handle) Handle(context.Context, slog.Record) error { h(); return nil }
func (h handle) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h handle) WithGroup(string) slog.Handler             { return h }

// While a log takes nothing, keys end when they are to end and waiters go on.
func TestLoggerThatHangs(t *testing.T) {
	var hangs chan struct{}
	bubble(t, idem.Config{Logger: slog.New(handle(func() { <-hangs }))}, func(r rig) {
		hangs = make(chan struct{})
		defer close(hangs)
		r.fresh("lapses first", time.Second)
		r.fresh("k", 10*time.Second)
		out, err := r.Begin(r.Context(), idem.Request{Key: "k", Wait: true})
		require.NoError(r, err)
		require.Equal(r, idem.Fresh, out.State)
		require.NoError(r, r.Close())
	})
}

func TestLoggerThatPanicsOrCloses(t *testing.T) {
	for _, do := range []func(*idem.Engine){
		func(*idem.Engine) { panic("broken") },
		func(e *idem.Engine) { _ = e.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			var e *idem.Engine
			called := 0
			var err error
			e, err = idem.New(idem.Config{Logger: slog.New(handle(func() { called++; do(e) }))})
			require.NoError(t, err)
			_, err = e.Begin(t.Context(), idem.Request{Key: "k", Lease: time.Second})
			require.NoError(t, err)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, 1, called)
			require.NoError(t, e.Close())
		})
	}
}

// No goroutine is left that is at work as it should be.
func TestCloseWaitsForTheLogger(t *testing.T) {
	var begun chan struct{}
	told := false
	bubble(t, idem.Config{Logger: slog.New(handle(func() {
		close(begun)
		time.Sleep(90 * time.Millisecond)
		told = true
	}))}, func(r rig) {
		begun = make(chan struct{})
		r.fresh("k", time.Second)
		<-begun
		require.NoError(r, r.Close())
		require.True(r, told)
	})
}
