package idem_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// An ending is a way in which an operation ends without a result.
type ending struct {
	name  string
	fn    func(ctx context.Context, cancelOwner func()) (idem.Response, error)
	check func(t *testing.T, panicked any, returned bool, err error)
}

var errBoom = errors.New("boom")

var endings = []ending{
	{
		"panic",
		func(context.Context, func()) (idem.Response, error) { panic(errBoom) },
		func(t *testing.T, panicked any, returned bool, _ error) {
			require.Equal(t, errBoom, panicked)
			require.False(t, returned)
		},
	},
	{
		"panic with nil",
		func(context.Context, func()) (idem.Response, error) { panic(nil) },
		func(t *testing.T, panicked any, returned bool, _ error) {
			require.IsType(t, (*runtime.PanicNilError)(nil), panicked)
			require.False(t, returned)
		},
	},
	{
		"Goexit",
		func(context.Context, func()) (idem.Response, error) { runtime.Goexit(); panic("unreachable") },
		func(t *testing.T, panicked any, returned bool, _ error) {
			require.Nil(t, panicked)
			require.False(t, returned)
		},
	},
	{
		"cancelled context",
		func(ctx context.Context, cancelOwner func()) (idem.Response, error) {
			cancelOwner()
			<-ctx.Done()
			return idem.Response{}, context.Cause(ctx)
		},
		func(t *testing.T, panicked any, returned bool, err error) {
			require.Nil(t, panicked)
			require.True(t, returned)
			require.Equal(t, context.Canceled, err)
		},
	},
}

// runToEnd is the owner: it begins, calls before, and ends as e says, in a goroutine of its own.
func (e ending) runToEnd(t *testing.T, store idem.Store, before func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var panicked any
	var returned bool
	var err error
	var owner sync.WaitGroup
	owner.Go(func() {
		defer func() { panicked = recover() }()
		_, err = idem.Do(ctx, store, order, func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
			before()
			return e.fn(ctx, cancel)
		})
		returned = true
	})
	owner.Wait()
	e.check(t, panicked, returned, err)
}

func TestDoReleasesHoweverTheOwnerEnds(t *testing.T) {
	for _, end := range endings {
		t.Run(end.name, func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{})}
			end.runToEnd(t, store, func() {})
			require.Equal(t, []string{"Abandon"}, store.calls)
			out, err := store.Begin(t.Context(), order)
			require.NoError(t, err)
			require.Equal(t, idem.Fresh, out.State)
		})
	}
}

type doResult struct {
	resp idem.Response
	err  error
}

// follow starts n duplicates that wait for the owner, and returns when all of them do.
func follow(t *testing.T, e *idem.Engine, n int, fn func(context.Context, idem.Claim) (idem.Response, error)) <-chan doResult {
	t.Helper()
	results := make(chan doResult, n)
	for range n {
		go func() {
			resp, err := idem.Do(context.Background(), e, waitingOrder, fn)
			results <- doResult{resp, err}
		}()
	}
	synctest.Wait()
	require.Equal(t, n, e.Stats().Waiting)
	return results
}

func TestDoWaitersOutliveTheOwner(t *testing.T) {
	const n = 50
	for _, end := range endings {
		t.Run(end.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := openEngine(t, idem.Config{})
				start := time.Now()
				var runs atomic.Int32
				var results <-chan doResult
				end.runToEnd(t, e, func() {
					results = follow(t, e, n, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
						runs.Add(1)
						return idem.Response{Body: []byte("second owner")}, ctx.Err()
					})
				})
				for range n {
					r := <-results
					require.NoError(t, r.err)
					require.Equal(t, "second owner", string(r.resp.Body))
				}
				require.EqualValues(t, 1, runs.Load(), "one waiter runs, the others wait for it")
				require.Less(t, time.Since(start), time.Second)
			})
		})
	}
}

func TestDoWaitersSeeNothingOfTheOwnersContext(t *testing.T) {
	// run starts an owner whose context ends while fn runs, and ten duplicates that wait.
	run := func(t *testing.T, e *idem.Engine, fn, followers func(context.Context, idem.Claim) (idem.Response, error)) (owner doResult, others []doResult) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		first := make(chan doResult, 1)
		go func() {
			resp, err := idem.Do(ctx, e, order, fn)
			first <- doResult{resp, err}
		}()
		synctest.Wait()
		results := follow(t, e, 10, followers)
		for range 10 {
			others = append(others, <-results)
		}
		return <-first, others
	}

	t.Run("an owner that goes on keeps the key and completes it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			var token uint64
			var held idem.Record
			var waits int
			owner, others := run(t, e, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
				<-ctx.Done()
				time.Sleep(time.Minute)
				token, waits = c.Token, e.Stats().Waiting
				held, _, _ = e.Lookup(context.Background(), order.Scope, order.Key)
				return answer("ok")(ctx, c)
			}, unreached(t))
			require.Equal(t, 10, waits)
			require.Equal(t, token, held.Token)
			require.Equal(t, idem.InProgress, held.State)
			for _, r := range append(others, owner) {
				require.NoError(t, r.err)
				require.Equal(t, "ok", string(r.resp.Body))
			}
		})
	})
	t.Run("an owner that stops makes one of them the next owner", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			var runs atomic.Int32
			work := func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
				runs.Add(1)
				select {
				case <-ctx.Done():
					return idem.Response{}, context.Cause(ctx)
				case <-time.After(100 * time.Millisecond):
					return idem.Response{Body: []byte("ok")}, nil
				}
			}
			owner, others := run(t, e, work, work)
			require.ErrorIs(t, owner.err, context.DeadlineExceeded)
			for _, r := range others {
				require.NoError(t, r.err)
				require.Equal(t, "ok", string(r.resp.Body))
			}
			require.EqualValues(t, 2, runs.Load())
		})
	})
	// After a fault of a single-flight group: who joins a flight whose first caller has been cancelled
	// must not get that caller's error.
	t.Run("a caller that comes after the cancellation gets the value", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			finish := make(chan struct{})
			first := make(chan doResult, 1)
			go func() {
				resp, err := idem.Do(ctx, e, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
					<-finish
					return answer("ok")(ctx, c)
				})
				first <- doResult{resp, err}
			}()
			synctest.Wait()
			cancel()
			synctest.Wait()
			second := follow(t, e, 1, unreached(t))
			close(finish)
			for _, r := range []doResult{<-first, <-second} {
				require.NoError(t, r.err)
				require.Equal(t, "ok", string(r.resp.Body))
			}
		})
	})
}

type traceKey struct{}

func TestDoRecordsAlthoughTheCallerLeft(t *testing.T) {
	store := &faulty{Store: openEngine(t, idem.Config{})}
	store.onComplete = func(ctx context.Context, _ int) error {
		require.Equal(t, "trace", ctx.Value(traceKey{}), "values are kept")
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), traceKey{}, "trace"))
	errLeft := errors.New("client left")
	charged := 0
	resp, err := idem.Do(ctx, store, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
		require.Equal(t, "trace", ctx.Value(traceKey{}))
		charged++
		cancel(errLeft)
		<-ctx.Done() // the function is told, and decides
		require.Equal(t, errLeft, context.Cause(ctx))
		return answer("charged")(ctx, c)
	})
	require.NoError(t, err)
	require.Equal(t, "charged", string(resp.Body))

	_, err = idem.Do(ctx, store, order, unreached(t))
	require.Equal(t, errLeft, err)
	retry, err := idem.Do(t.Context(), store, order, unreached(t))
	require.NoError(t, err)
	require.Equal(t, "charged", string(retry.Body))
	require.Equal(t, 1, charged)
}

// An operation that records its response itself, as in the transaction of its effect, has not lost its claim, although that
// can't be extended any more.
func TestDoOwnerCompletesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEngine(t, idem.Config{Lease: 9 * time.Second})
		resp, err := idem.Do(t.Context(), e, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
			time.Sleep(10 * time.Second)
			resp := idem.Response{Status: 201, Body: []byte("paid")}
			require.NoError(t, e.Complete(ctx, c, resp))
			time.Sleep(time.Minute)
			require.NoError(t, context.Cause(ctx))
			return resp, nil
		})
		require.NoError(t, err)
		require.Equal(t, "paid", string(resp.Body))
	})
}

// What an operator records in its stead, or another owner, is not its own.
func TestDoOwnerIsToldOfAnothersResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEngine(t, idem.Config{Lease: 9 * time.Second})
		_, err := idem.Do(t.Context(), e, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
			require.NoError(t, e.Resolve(ctx, c.Scope, c.Key, idem.Response{}))
			time.Sleep(4 * time.Second)
			require.ErrorIs(t, context.Cause(ctx), idem.ErrClaimLost)
			return idem.Response{}, nil
		})
		require.ErrorIs(t, err, idem.ErrNotRecorded)
	})
}

// What ends the tries also does so when it is not the first answer.
func TestDoTriesNoMoreAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{}), onComplete: func(_ context.Context, call int) error {
			if call == 1 {
				return errDown
			}
			return idem.ErrClaimLost
		}}
		_, err := idem.Do(t.Context(), store, order, answer("b"))
		require.ErrorIs(t, err, idem.ErrClaimLost)
		require.Equal(t, 2, store.count("Complete"))
	})
}

// No try begins after the patience's end.
func TestDoTriesNoMoreAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{}), onComplete: hangUntilDone}
		r, start := order, time.Now()
		r.Lease = time.Second
		_, err := idem.Do(t.Context(), store, r, answer("b"))
		require.ErrorIs(t, err, idem.ErrNotRecorded)
		require.Equal(t, 2, store.count("Complete"), "one at once, and one within ten seconds of that; each hangs for five")
		require.Less(t, time.Since(start), 11*time.Second)
	})
}

// Who asks whether it completed itself has often been left by its caller already.
func TestCompletedAfterTheCallerHasLeft(t *testing.T) {
	e := openEngine(t, idem.Config{})
	out, err := e.Begin(t.Context(), order)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, idem.Completed(ctx, e, out.Claim))
	require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{}))
	require.True(t, idem.Completed(ctx, e, out.Claim))
}

// A failure may outlive the buffer into which it was replayed.
func TestFailureSharesNoBuffer(t *testing.T) {
	e := openEngine(t, idem.Config{})
	out, err := e.Begin(t.Context(), order)
	require.NoError(t, err)
	require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{Header: []byte("header"), Body: []byte("declined"), Failed: true}))
	r, buf := order, make([]byte, 100)
	r.Buf = buf
	_, err = idem.Do(t.Context(), e, r, unreached(t))
	clear(buf)
	var failed *idem.FailedError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "header", string(failed.Response.Header))
	require.Equal(t, "declined", string(failed.Response.Body))
}

// panicking is a store whose Extend panics, in a goroutine in which no caller could recover.
type panicking struct{ idem.Store }

func (panicking) Extend(context.Context, idem.Claim, time.Duration) error { panic("broken") }

func TestPanicInExtendIsAFailure(t *testing.T) {
	bubble(t, idem.Config{Lease: time.Minute}, func(r rig) {
		_, err := idem.Do(r.Context(), panicking{r}, idem.Request{Key: "k"}, func(context.Context, idem.Claim) (idem.Response, error) {
			time.Sleep(30 * time.Second)
			return idem.Response{}, nil
		})
		require.NoError(r, err)
	})
}

// An unsound store says that every claim is lost, and does something else when it is asked whether that is so.
type unsound struct {
	*idem.Engine

	look func()
}

func (unsound) Extend(context.Context, idem.Claim, time.Duration) error { return idem.ErrClaimLost }

func (s unsound) Lookup(context.Context, string, string) (idem.Record, bool, error) {
	s.look()
	return idem.Record{}, false, nil
}

// An operation is told that its claim is lost, whatever the store does when it is asked whether the operation completed
// itself: in a goroutine in which no caller could recover, and without heeding its context.
func TestDoIsToldOfALossByAnUnsoundStore(t *testing.T) {
	told := func(t *testing.T, look func()) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			store := unsound{openEngine(t, idem.Config{Lease: time.Minute}), look}
			_, err := idem.Do(t.Context(), store, order, func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
				<-ctx.Done()
				return idem.Response{}, context.Cause(ctx)
			})
			require.ErrorIs(t, err, idem.ErrClaimLost)
			require.LessOrEqual(t, time.Since(start), 21*time.Second, "a second after the first beat")
			time.Sleep(time.Hour) // a bubble must not end before what hangs
		})
	}
	t.Run("that panics", func(t *testing.T) { told(t, func() { panic("broken") }) })
	t.Run("that hangs", func(t *testing.T) { told(t, func() { time.Sleep(time.Minute) }) })
}

// exits is an error whose text ends the goroutine that asks for it.
type exits struct{}

func (exits) Error() string {
	runtime.Goexit()
	return ""
}

// An operation that has ended for good does not run again because its end cannot be put into words.
func TestDoKeepsTheClaimOfAFailureWithoutWords(t *testing.T) {
	e, done := openEngine(t, idem.Config{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
			return idem.Response{}, idem.Permanent(exits{})
		})
	}()
	<-done
	out, err := e.Begin(t.Context(), order)
	require.NoError(t, err)
	require.Equal(t, idem.InProgress, out.State)
}
