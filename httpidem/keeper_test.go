package httpidem_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

func TestMaxRunEndsTheHandlersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		start := time.Now()
		var h http.Handler
		h = guardWith(t, store, httpidem.Config{MaxRun: 50 * time.Second})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			assert.Equal(t, 50*time.Second, time.Since(start))
			assert.Equal(t, context.DeadlineExceeded, r.Context().Err())
			assert.Equal(t, context.DeadlineExceeded, context.Cause(r.Context()))
			time.Sleep(10 * time.Minute) // it does not heed its context, but it still runs
			requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeInProgress)
			w.WriteHeader(http.StatusCreated)
		}))
		require.Equal(t, 201, post(t, h, "k", "").Code)
		requireReplayed(t, post(t, h, "k", ""), 201, "")
	})
}

func TestMaxRunIsFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		start := time.Now()
		h := guardWith(t, store, httpidem.Config{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}))
		post(t, h, "k", "")
		require.Equal(t, 5*time.Minute, time.Since(start))
	})
}

func TestClaimIsExtendedWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{Lease: 3 * time.Second})
		extended := 0
		store.OnExtend = func() error { extended++; return nil }
		runs := 0
		h := guardWith(t, store, httpidem.Config{})(counted(&runs, func(http.ResponseWriter, *http.Request) { time.Sleep(30500 * time.Millisecond) }))
		done := make(chan *httptest.ResponseRecorder)
		go func() { done <- post(t, h, "k", "") }()
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			again := post(t, h, "k", "")
			requireProblem(t, again, 409, httpidem.CodeInProgress)
			require.Contains(t, []string{"2", "3"}, again.Header().Get("Retry-After"), "the lease is never near its end")
		}
		require.Equal(t, 200, (<-done).Code)
		require.Equal(t, 1, runs)
		require.Equal(t, 30, extended)
	})
}

func TestClaimThatCannotBeExtended(t *testing.T) {
	t.Run("is no matter if it can be before the lease ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			fails := 5
			store.OnExtend = func() error {
				if fails--; fails > 0 {
					return httpcases.ErrDown
				}
				return nil
			}
			h := guardWith(t, store, httpidem.Config{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				time.Sleep(2 * time.Minute)
				assert.NoError(t, r.Context().Err())
			}))
			require.Equal(t, 200, post(t, h, "k", "").Code)
		})
	})
	t.Run("ends the handler's context with its lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			store.OnExtend = func() error { return httpcases.ErrDown }
			start := time.Now()
			h := guardWith(t, store, httpidem.Config{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				assert.Equal(t, idem.ErrClaimLost, context.Cause(r.Context()))
				assert.Equal(t, context.Canceled, r.Context().Err())
				assert.Equal(t, 30*time.Second, time.Since(start))
			}))
			require.Equal(t, 200, post(t, h, "k", "").Code, "nobody else took the key, so that the answer counts")
			requireReplayed(t, post(t, h, "k", ""), 200, "")
		})
	})
	t.Run("ends the handler's context when somebody else has it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			var log bytes.Buffer
			runs := 0
			var h http.Handler
			h = guardWith(t, store, httpidem.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})(counted(&runs, func(w http.ResponseWriter, r *http.Request) {
				if runs > 1 {
					_, _ = w.Write([]byte("second"))
					return
				}
				_, err := store.Store.(idem.Inspector).Forget(t.Context(), "", "secret-key")
				assert.NoError(t, err)
				assert.Equal(t, "second", post(t, h, "secret-key", "").Body.String())
				<-r.Context().Done()
				assert.Equal(t, idem.ErrClaimLost, context.Cause(r.Context()))
				_, _ = w.Write([]byte("first"))
			}))
			lost := post(t, h, "secret-key", "")
			requireProblem(t, lost, 503, httpidem.CodeStoreUnavailable)
			requireReplayed(t, post(t, h, "secret-key", ""), 200, "second")
			require.Contains(t, log.String(), "claim lost")
			require.NotContains(t, log.String(), "secret-key")
		})
	})
	t.Run("does not hold the answer up when the store hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			hang := hangingStore{store}
			start := time.Now()
			h := guardWith(t, hang, httpidem.Config{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(11 * time.Second) }))
			require.Equal(t, 200, post(t, h, "k", "").Code)
			require.Equal(t, 11*time.Second, time.Since(start))
		})
	})
}

// The timer of one claim is left to the next, which may begin at any time and ask for another lease.
func TestClaimsThatFollowEachOtherAreExtended(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Second, 9 * time.Second, 10 * time.Second, 11 * time.Second, time.Minute} {
		for _, lease := range []time.Duration{3 * time.Second, 30 * time.Second, 5 * time.Minute} {
			t.Run(fmt.Sprintf("%v later with a lease of %v", pause, lease), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newFaultyStore(t, idem.Config{Lease: 30 * time.Second})
					extended, run := 0, time.Duration(0)
					store.OnExtend = func() error { extended++; return nil }
					granted := 30 * time.Second
					h := guardWith(t, httpcases.LeasingStore{Store: store, Lease: &granted}, httpidem.Config{MaxRun: time.Hour})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(run) }))
					require.Equal(t, 200, post(t, h, "quick", "").Code)
					time.Sleep(pause)
					run, granted = lease*10+lease/6, lease
					require.Equal(t, 200, post(t, h, "slow", "").Code)
					require.Equal(t, 30, extended)
				})
			})
		}
	}
}

func TestStoreThatDoesNotTellTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		extended := 0
		store.OnExtend = func() error { extended++; return nil }
		h := guardWith(t, silentStore{store}, httpidem.Config{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(25 * time.Second) }))
		require.Equal(t, 200, post(t, h, "k", "").Code)
		require.Equal(t, 2, extended, "as for a lease of 30 seconds")
	})
}

// silentStore does not say how long the lease is that it grants.
type silentStore struct{ idem.Store }

func (s silentStore) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	out, err := s.Store.Begin(ctx, req)
	out.Remaining = 0
	return out, err
}

// hangingStore does not answer Extend before its context ends.
type hangingStore struct{ idem.Store }

func (hangingStore) Extend(ctx context.Context, _ idem.Claim, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A lateStore takes so long to extend that its answer comes after the claim was given up, unless that waits.
type lateStore struct{ idem.Store }

func (s lateStore) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	<-ctx.Done()
	time.Sleep(time.Second)
	return s.Store.Extend(context.WithoutCancel(ctx), c, lease)
}

func TestNoExtendComesAfterAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		h := guardWith(t, lateStore{newEngine(t, idem.Config{})}, httpidem.Config{})(counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
			if runs == 1 {
				time.Sleep(10*time.Second + 1) // the first Extend is on its way
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		require.Equal(t, 503, post(t, h, "k", "").Code)
		require.Equal(t, 503, post(t, h, "k", "").Code, "the key is free")
		require.Equal(t, 2, runs)
	})
}

// A faultyLog waits until the handler has been told, and panics.
type faultyLog struct {
	slog.Handler

	told <-chan struct{}
}

func (faultyLog) Enabled(context.Context, slog.Level) bool { return true }

func (l faultyLog) Handle(context.Context, slog.Record) error {
	<-l.told
	panic("broken")
}

// The logger has no part in telling the handler, and cannot end the process from a goroutine in which nobody could recover.
func TestHandlerIsToldOfALossBeforeTheLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{Lease: 3 * time.Second})
		store.OnExtend = func() error { return idem.ErrClaimLost }
		told := make(chan struct{})
		logger := slog.New(faultyLog{slog.DiscardHandler, told})
		h := guardWith(t, store, httpidem.Config{Logger: logger})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				assert.Equal(t, idem.ErrClaimLost, context.Cause(r.Context()))
			case <-time.After(time.Minute):
				t.Error("not told")
			}
			close(told)
		}))
		post(t, h, "k", "")
		synctest.Wait()
	})
}
