package idem_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// failAlways is a hook that fails every call.
func failAlways(err error) func(context.Context, int) error {
	return func(context.Context, int) error { return err }
}

// hangUntilDone is a hook that answers when its context ends.
func hangUntilDone(ctx context.Context, _ int) error {
	<-ctx.Done()
	return ctx.Err()
}

// lasting is an operation that takes d, whatever its context says, and reports when that ended, and why.
func lasting(d time.Duration, endedAfter *time.Duration, cause *error) func(context.Context, idem.Claim) (idem.Response, error) {
	return func(ctx context.Context, c idem.Claim) (idem.Response, error) {
		start := time.Now()
		done := time.After(d)
		select {
		case <-ctx.Done():
			*endedAfter, *cause = time.Since(start), context.Cause(ctx)
			<-done
		case <-done:
		}
		return answer("done")(ctx, c)
	}
}

func TestHeartbeatKeepsTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		store := &faulty{Store: e}
		r := order
		r.Lease = 9 * time.Second
		resp, err := idem.Do(t.Context(), store, r, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
			for range 60 {
				time.Sleep(time.Second)
				_, err := idem.Do(ctx, store, r, unreached(t))
				var inProgress *idem.InProgressError
				require.ErrorAs(t, err, &inProgress)
				require.Greater(t, inProgress.Remaining, 5*time.Second)
			}
			require.NoError(t, ctx.Err())
			require.InDelta(t, 20, store.count("Extend"), 1)
			return answer("done")(ctx, c)
		})
		require.NoError(t, err)
		require.Equal(t, "done", string(resp.Body))
		require.Equal(t, 1, store.count("Complete"))
		require.Zero(t, store.count("Abandon"))
	})
}

func TestHeartbeatUsesTheLeaseOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{Lease: 300 * time.Millisecond})}
		var ended time.Duration
		var cause error
		_, err := idem.Do(t.Context(), store, order, lasting(time.Second+50*time.Millisecond, &ended, &cause))
		require.NoError(t, err)
		require.NoError(t, cause)
		require.Equal(t, make([]time.Duration, 10), store.leases, "ten beats, each for the default")
	})
}

func TestHeartbeatTakesAnyLease(t *testing.T) {
	for _, lease := range []time.Duration{1, 2, 3, time.Microsecond, time.Millisecond, 3 * time.Millisecond, time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &faulty{Store: openEngine(t, idem.Config{})}
				r := order
				r.Lease = lease
				var ended time.Duration
				var cause error
				_, err := idem.Do(t.Context(), store, r, lasting(400*time.Millisecond, &ended, &cause))
				require.NoError(t, err)
				require.NoError(t, cause)
				require.Positive(t, store.count("Extend"))
				require.LessOrEqual(t, store.count("Extend"), 400)
				require.Equal(t, lease, slices.Min(store.leases))
				require.Equal(t, lease, slices.Max(store.leases))
			})
		})
	}
	t.Run("no longer than a millisecond and a store that fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{}), onExtend: failAlways(errDown)}
			r := order
			r.Lease = 1
			var ended time.Duration
			var cause error
			_, err := idem.Do(t.Context(), store, r, lasting(400*time.Millisecond, &ended, &cause))
			require.NoError(t, err)
			require.Equal(t, idem.ErrClaimLost, cause)
			require.LessOrEqual(t, store.count("Extend"), 400)
		})
	})
	for _, lease := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64/3 + 1} {
		t.Run(lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &faulty{Store: openEngine(t, idem.Config{})}
				r := order
				r.Lease = lease
				var ended time.Duration
				var cause error
				_, err := idem.Do(t.Context(), store, r, lasting(1000*time.Hour, &ended, &cause))
				require.NoError(t, err)
				require.NoError(t, cause)
				require.Zero(t, store.count("Extend"))
			})
		})
	}
}

func TestHeartbeatLosesTheClaim(t *testing.T) {
	t.Run("to another owner", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			store := &faulty{Store: e}
			r := order
			r.Lease = 9 * time.Second
			resp, err := idem.Do(t.Context(), store, r, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
				start := time.Now()
				_, err := e.Forget(ctx, order.Scope, order.Key)
				require.NoError(t, err)
				other, err := idem.Do(ctx, e, r, answer("other owner"))
				require.NoError(t, err)
				require.Equal(t, "other owner", string(other.Body))
				<-ctx.Done()
				require.Equal(t, idem.ErrClaimLost, context.Cause(ctx))
				require.Equal(t, 3*time.Second, time.Since(start), "at the first beat")
				time.Sleep(time.Minute)
				return answer("late")(ctx, c)
			})
			require.ErrorIs(t, err, idem.ErrNotRecorded)
			require.ErrorIs(t, err, idem.ErrClaimLost)
			require.Equal(t, "late", string(resp.Body))
			require.Equal(t, []string{"Extend", "Complete"}, store.calls, "no beat after the loss, no second try")

			resp, err = idem.Do(t.Context(), store, r, unreached(t))
			require.NoError(t, err)
			require.Equal(t, "other owner", string(resp.Body))
		})
	})

	for _, tt := range []struct {
		name     string
		onExtend func(ctx context.Context, call int) error
		lostAt   time.Duration // zero: not lost
	}{
		{"not to a store that fails for less than the lease", func(_ context.Context, call int) error {
			if call%6 != 0 {
				return errDown
			}
			return nil
		}, 0},
		{"to a store that fails for the whole lease", failAlways(errDown), 12 * time.Second},
		{"to a store that is closed", failAlways(idem.ErrClosed), 12 * time.Second},
		{"to a store that hangs", hangUntilDone, 12 * time.Second},
		{"to a store that fails after a success", func(_ context.Context, call int) error {
			if call > 1 {
				return errDown
			}
			return nil
		}, 16 * time.Second},
		{"to a store that hangs and heeds nothing", func(context.Context, int) error {
			time.Sleep(30 * time.Second)
			return errDown
		}, 12 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &faulty{Store: openEngine(t, idem.Config{}), onExtend: tt.onExtend}
				r := order
				r.Lease = 12 * time.Second
				var ended time.Duration
				var cause error
				resp, err := idem.Do(t.Context(), store, r, lasting(time.Minute, &ended, &cause))
				require.NoError(t, err, "nobody else came, so the result counts")
				require.Equal(t, "done", string(resp.Body))
				require.Equal(t, tt.lostAt, ended)
				if tt.lostAt != 0 {
					require.Equal(t, idem.ErrClaimLost, cause)
				}
			})
		})
	}
}

func TestHeartbeatEndsBeforeDoReturns(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func() (idem.Response, error)
		last string
	}{
		{"with a response", func() (idem.Response, error) { return idem.Response{}, nil }, "Complete"},
		{"with an error", func() (idem.Response, error) { return idem.Response{}, errBoom }, "Abandon"},
		{"with a panic", func() (idem.Response, error) { panic(errBoom) }, "Abandon"},
		{"with Goexit", func() (idem.Response, error) { runtime.Goexit(); panic("unreachable") }, "Abandon"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var beating atomic.Int32
				store := &faulty{Store: openEngine(t, idem.Config{})}
				store.onExtend = func(ctx context.Context, _ int) error {
					beating.Add(1)
					defer beating.Add(-1)
					<-ctx.Done()
					time.Sleep(time.Millisecond)
					return ctx.Err()
				}
				store.onAbandon = func(context.Context, int) error {
					require.Zero(t, beating.Load(), "an Extend after it would claim the key again")
					return nil
				}
				left := make(chan int32)
				start := time.Now()
				go func() {
					defer func() {
						_ = recover()
						left <- beating.Load()
					}()
					_, _ = idem.Do(context.Background(), store, order, func(context.Context, idem.Claim) (idem.Response, error) {
						time.Sleep(11 * time.Second)
						if beating.Load() != 1 {
							t.Error("the heartbeat does not hangUntilDone in Extend")
						}
						return tt.end()
					})
				}()
				require.Zero(t, <-left)
				require.Less(t, time.Since(start), 12*time.Second, "an Extend that hangs is not waited for")
				time.Sleep(time.Hour)
				require.Equal(t, []string{"Extend", tt.last}, store.calls)
			})
		})
	}
}

func TestHeartbeatBeatsAtTheInstantOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		for i := range 200 {
			store := &faulty{Store: e}
			r := idem.Request{Key: fmt.Sprint("order-", i), Lease: 3 * time.Second}
			_, err := idem.Do(t.Context(), store, r, func(context.Context, idem.Claim) (idem.Response, error) {
				time.Sleep(time.Duration(1+i%3) * time.Second)
				return idem.Response{}, errBoom
			})
			require.Equal(t, errBoom, err)
			require.Equal(t, "Abandon", store.calls[len(store.calls)-1])
			_, found, err := e.Lookup(t.Context(), "", r.Key)
			require.NoError(t, err)
			require.False(t, found, "claimed again by a late Extend")
		}
	})
}

func TestDoTriesCompleteAgain(t *testing.T) {
	failFirst := func(n int, err error) func(context.Context, int) error {
		return func(_ context.Context, call int) error {
			if call <= n {
				return err
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name       string
		onComplete func(context.Context, int) error
		within     time.Duration
	}{
		{"after an error", failFirst(1, errDown), 50 * time.Millisecond},
		{"after many", failFirst(10, errDown), 15 * time.Second},
		{"after a lack of room", failFirst(2, idem.ErrFull), time.Second},
		{"after it hung", func(ctx context.Context, call int) error {
			if call == 1 {
				return hangUntilDone(ctx, call)
			}
			return nil
		}, 6 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &faulty{Store: openEngine(t, idem.Config{}), onComplete: tt.onComplete}
				start := time.Now()
				resp, err := idem.Do(t.Context(), store, order, answer("done"))
				require.NoError(t, err)
				require.Equal(t, "done", string(resp.Body))
				require.LessOrEqual(t, time.Since(start), tt.within)
				require.Zero(t, store.count("Abandon"))
				_, err = idem.Do(t.Context(), store, order, unreached(t))
				require.NoError(t, err)
			})
		})
	}
	t.Run("when only its answer was lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			store := &faulty{Store: e}
			var claim idem.Claim
			store.onComplete = func(ctx context.Context, call int) error {
				if call > 1 {
					return nil
				}
				require.NoError(t, e.Complete(ctx, claim, idem.Response{Body: []byte("done")}))
				return errDown
			}
			_, err := idem.Do(t.Context(), store, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
				claim = c
				return answer("done")(ctx, c)
			})
			require.NoError(t, err)
			require.Equal(t, 2, store.count("Complete"))
		})
	})
	for _, final := range []error{idem.ErrClaimLost, idem.ErrClosed, idem.ErrKey} {
		t.Run(fmt.Sprintf("not after %v", final), func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{}), onComplete: failAlways(fmt.Errorf("wrapped: %w", final))}
			resp, err := idem.Do(t.Context(), store, order, answer("done"))
			require.ErrorIs(t, err, idem.ErrNotRecorded)
			require.ErrorIs(t, err, final)
			require.Equal(t, "done", string(resp.Body))
			require.Equal(t, []string{"Complete"}, store.calls)
		})
	}
}

func TestDoGivesUpCompletingInTheEnd(t *testing.T) {
	for _, tt := range []struct {
		lease, after time.Duration
	}{
		{300 * time.Millisecond, 10 * time.Second},
		{12 * time.Second, 12 * time.Second},
		{30 * time.Second, 30 * time.Second},
		{math.MaxInt64, 5 * time.Minute},
	} {
		t.Run(tt.lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := openEngine(t, idem.Config{})
				store := &faulty{Store: e, onComplete: failAlways(errDown)}
				r := order
				r.Lease = tt.lease
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var cause func() error
				resp, err := idem.Do(ctx, store, r, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
					cause = func() error { return context.Cause(ctx) }
					return answer("done")(ctx, c)
				})
				took := time.Since(start)
				require.ErrorIs(t, err, idem.ErrNotRecorded)
				require.ErrorIs(t, err, errDown)
				require.Equal(t, "done", string(resp.Body))
				require.Equal(t, tt.after, took)
				require.Equal(t, context.DeadlineExceeded, cause(), "the claim was not lost")
				require.Zero(t, store.count("Abandon"))
				require.Less(t, store.count("Complete"), 7+int(took/time.Second))
				_, err = idem.Do(t.Context(), e, r, unreached(t))
				require.ErrorIs(t, err, idem.ErrInProgress, "kept by the heartbeat until the end")
			})
		})
	}
}

func TestHeartbeatHasNoGoroutineBeforeItBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := scripted{out: idem.Outcome{State: idem.Fresh, Remaining: 30 * time.Second}}
		before := runtime.NumGoroutine()
		_, err := idem.Do(t.Context(), store, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
			time.Sleep(9 * time.Second)
			require.Equal(t, before, runtime.NumGoroutine())
			return answer("")(ctx, c)
		})
		require.NoError(t, err)
	})
}

// A silent store answers neither Extend nor Lookup.
type silent struct{ *idem.Engine }

func (s silent) Extend(ctx context.Context, _ idem.Claim, _ time.Duration) error {
	return hangUntilDone(ctx, 0)
}

func (s silent) Lookup(ctx context.Context, _, _ string) (idem.Record, bool, error) {
	return idem.Record{}, false, hangUntilDone(ctx, 0)
}

// When the lease has run out without an answer somebody else may be at work: the operation is told at once, and the
// store is not asked for longer.
func TestHeartbeatThatHearsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := order
		r.Lease = 12 * time.Second
		var ended time.Duration
		var cause error
		_, err := idem.Do(t.Context(), silent{openEngine(t, idem.Config{})}, r, lasting(time.Minute, &ended, &cause))
		require.NoError(t, err)
		require.Equal(t, r.Lease, ended)
		require.Equal(t, idem.ErrClaimLost, cause)
	})
}
