package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// A faulty is a store whose calls fail when a test wants it: a hook gets the number of the call, from 1,
// and an error of it is the answer, before the store below has seen the call. Finishing calls are refused
// when their context is done or has no deadline, as a client of a remote store would have it.
type faulty struct {
	idem.Store
	onExtend, onComplete, onAbandon func(ctx context.Context, call int) error

	mu     sync.Mutex
	calls  []string // names, in the order in which they began
	leases []time.Duration
}

func (f *faulty) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if err := f.enter(ctx, "Complete", f.onComplete); err != nil {
		return err
	}
	return f.Store.Complete(ctx, c, resp)
}

func (f *faulty) Abandon(ctx context.Context, c idem.Claim) error {
	if err := f.enter(ctx, "Abandon", f.onAbandon); err != nil {
		return err
	}
	return f.Store.Abandon(ctx, c)
}

func (f *faulty) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	f.mu.Lock()
	f.leases = append(f.leases, lease)
	f.mu.Unlock()
	if err := f.enter(ctx, "Extend", f.onExtend); err != nil {
		return err
	}
	return f.Store.Extend(ctx, c, lease)
}

func (f *faulty) enter(ctx context.Context, name string, hook func(context.Context, int) error) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	call := f.countLocked(name)
	f.mu.Unlock()
	if _, limited := ctx.Deadline(); ctx.Err() != nil || !limited {
		return fmt.Errorf("%s was given a context that is done or unlimited: %w", name, context.Canceled)
	}
	if hook == nil {
		return nil
	}
	return hook(ctx, call)
}

func (f *faulty) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.countLocked(name)
}

func (f *faulty) countLocked(name string) (n int) {
	for _, call := range f.calls {
		if call == name {
			n++
		}
	}
	return n
}

// A scripted store answers every Begin with the same outcome, and takes whatever it is told.
type scripted struct {
	out idem.Outcome
	err error
}

func (s scripted) Begin(context.Context, idem.Request) (idem.Outcome, error) { return s.out, s.err }
func (s scripted) Complete(context.Context, idem.Claim, idem.Response) error { return nil }
func (s scripted) Abandon(context.Context, idem.Claim) error                 { return nil }
func (s scripted) Extend(context.Context, idem.Claim, time.Duration) error   { return nil }

func openEngine(t testing.TB, cfg idem.Config) *idem.Engine {
	t.Helper()
	e, err := idem.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// answer is an operation that returns body.
func answer(body string) func(context.Context, idem.Claim) (idem.Response, error) {
	return func(context.Context, idem.Claim) (idem.Response, error) {
		return idem.Response{Status: 201, Body: []byte(body)}, nil
	}
}

// unreached is an operation that must not run.
func unreached(t testing.TB) func(context.Context, idem.Claim) (idem.Response, error) {
	return func(context.Context, idem.Claim) (idem.Response, error) {
		t.Error("the operation ran")
		return idem.Response{}, nil
	}
}

var (
	order        = idem.Request{Scope: "shop", Key: "order-1"}
	waitingOrder = idem.Request{Scope: "shop", Key: "order-1", Wait: true}

	errDown = errors.New("store is down")
)

func TestDoReturnsWhatBeginFound(t *testing.T) {
	kept := idem.Response{Status: 201, Header: []byte("h"), Body: []byte("b"), StoredAt: time.Unix(1, 0)}
	cut := idem.Response{Status: 200, Truncated: true}
	failed := idem.Response{Failed: true, Body: []byte("card declined")}
	for _, tt := range []struct {
		name  string
		store scripted
		resp  idem.Response
		err   error  // matched with errors.Is
		text  string // contained in the error's text
	}{
		{"a replay", scripted{out: idem.Outcome{State: idem.Replay, Response: kept}}, kept, nil, ""},
		{"a replay without its body", scripted{out: idem.Outcome{State: idem.Replay, Response: cut}}, cut, idem.ErrTruncated, ""},
		{"a replayed failure", scripted{out: idem.Outcome{State: idem.Replay, Response: failed}}, failed, nil, "card declined"},
		{
			"in progress", scripted{out: idem.Outcome{State: idem.InProgress, Remaining: 1500 * time.Millisecond}},
			idem.Response{}, idem.ErrInProgress, "1.5s",
		},
		{"a mismatch", scripted{out: idem.Outcome{State: idem.Mismatch}}, idem.Response{}, idem.ErrMismatch, ""},
		{"unknown", scripted{out: idem.Outcome{State: idem.Unknown}}, idem.Response{}, idem.ErrUnknown, ""},
		{"no state at all", scripted{}, idem.Response{}, nil, "State(0)"},
		{"a state that is none", scripted{out: idem.Outcome{State: 9}}, idem.Response{}, nil, "State(9)"},
		{"an error", scripted{err: errDown}, idem.Response{}, errDown, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := idem.Do(t.Context(), tt.store, order, unreached(t))
			require.Equal(t, tt.resp, resp)
			if tt.err == nil && tt.text == "" {
				require.NoError(t, err)
			}
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
			}
			if tt.text != "" {
				require.ErrorContains(t, err, tt.text)
			}
		})
	}
	t.Run("the time left is a field", func(t *testing.T) {
		store := scripted{out: idem.Outcome{State: idem.InProgress, Remaining: time.Minute}}
		_, err := idem.Do(t.Context(), store, order, unreached(t))
		var inProgress *idem.InProgressError
		require.ErrorAs(t, err, &inProgress)
		require.Equal(t, time.Minute, inProgress.Remaining)
	})
}

func TestDoRunsOnce(t *testing.T) {
	e := openEngine(t, idem.Config{})
	var token uint64
	resp, err := idem.Do(t.Context(), e, order, func(_ context.Context, c idem.Claim) (idem.Response, error) {
		require.Equal(t, order.Key, c.Key)
		token = c.Token
		rec, _, err := e.Lookup(t.Context(), order.Scope, order.Key)
		require.NoError(t, err)
		require.Equal(t, c.Token, rec.Token)
		return answer("id 1")(t.Context(), c)
	})
	require.NoError(t, err)
	require.Equal(t, "id 1", string(resp.Body))
	require.NotZero(t, token)

	replay, err := idem.Do(t.Context(), e, order, unreached(t))
	require.NoError(t, err)
	require.Equal(t, 201, replay.Status)
	require.Equal(t, "id 1", string(replay.Body))
}

func TestDoRefusesProgrammerErrors(t *testing.T) {
	e := openEngine(t, idem.Config{})
	require.PanicsWithValue(t, "idem: Do with a nil store or function", func() {
		_, _ = idem.Do(t.Context(), nil, order, answer(""))
	})
	require.PanicsWithValue(t, "idem: Do with a nil store or function", func() {
		_, _ = idem.Do(t.Context(), e, order, nil)
	})
	require.PanicsWithValue(t, "idem: Call with a nil store or function", func() {
		_, _ = idem.Call[int](t.Context(), e, order, nil)
	})
	require.PanicsWithValue(t, "idem: Call with a nil store or function", func() {
		_, _ = idem.Call(t.Context(), nil, order, func(context.Context, idem.Claim) (int, error) { return 0, nil })
	})
	var none context.Context
	_, err := idem.Do(none, e, order, unreached(t))
	require.Error(t, err)
	_, err = idem.Do(t.Context(), e, idem.Request{Key: "k", Lease: -1}, unreached(t))
	require.Error(t, err)
	_, err = idem.Do(t.Context(), e, idem.Request{}, unreached(t))
	require.ErrorIs(t, err, idem.ErrKey)
}

func TestDoReleasesAfterAnError(t *testing.T) {
	partial := idem.Response{Status: 502}
	fails := func(context.Context, idem.Claim) (idem.Response, error) { return partial, io.ErrUnexpectedEOF }

	t.Run("the error and the response are those of the function", func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{})}
		resp, err := idem.Do(t.Context(), store, order, fails)
		require.Equal(t, io.ErrUnexpectedEOF, err)
		require.Equal(t, partial, resp)
		require.Equal(t, []string{"Abandon"}, store.calls)

		_, err = idem.Do(t.Context(), store, order, answer("second"))
		require.NoError(t, err)
	})
	t.Run("a release that fails is told too", func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{}), onAbandon: func(context.Context, int) error { return errDown }}
		_, err := idem.Do(t.Context(), store, order, fails)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.ErrorIs(t, err, errDown)
		_, err = idem.Do(t.Context(), store, order, unreached(t))
		require.ErrorIs(t, err, idem.ErrInProgress)
	})
	t.Run("a release that hangs is given up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{})}
			store.onAbandon = func(ctx context.Context, _ int) error {
				<-ctx.Done()
				return ctx.Err()
			}
			start := time.Now()
			_, err := idem.Do(t.Context(), store, order, fails)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.LessOrEqual(t, time.Since(start), 10*time.Second)
		})
	})
	t.Run("an error of this package is one like any other", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		for _, want := range []error{idem.ErrClaimLost, idem.ErrTruncated, idem.ErrClosed, idem.ErrInProgress, context.Canceled} {
			_, err := idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
				return idem.Response{}, want
			})
			require.ErrorIs(t, err, want)
			require.NotErrorIs(t, err, idem.ErrNotRecorded)
		}
		_, err := idem.Do(t.Context(), e, order, answer(""))
		require.NoError(t, err)
	})
}

func TestDoEndsTheFunctionsContext(t *testing.T) {
	var cause func() error
	_, err := idem.Do(t.Context(), openEngine(t, idem.Config{}), order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
		cause = func() error { return context.Cause(ctx) }
		return answer("")(ctx, c)
	})
	require.NoError(t, err)
	require.Equal(t, context.Canceled, cause())
}

func TestDoReplayAllocatesNothing(t *testing.T) {
	e := openEngine(t, idem.Config{})
	r := idem.Request{Scope: "shop", Key: "order-1", Buf: make([]byte, 0, 256)}
	_, err := idem.Do(t.Context(), e, r, answer("body"))
	require.NoError(t, err)
	fn := unreached(t)
	allocs := testing.AllocsPerRun(100, func() {
		resp, err := idem.Do(t.Context(), e, r, fn)
		if err != nil || string(resp.Body) != "body" {
			t.Error("no replay")
		}
	})
	require.Zero(t, allocs)
}

func BenchmarkDoReplay(b *testing.B) {
	e := openEngine(b, idem.Config{})
	r := idem.Request{Scope: "shop", Key: "order-1", Buf: make([]byte, 0, 256)}
	body := strings.Repeat("b", 200)
	_, err := idem.Do(b.Context(), e, r, answer(body))
	require.NoError(b, err)
	fn := unreached(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		resp, err := idem.Do(ctx, e, r, fn)
		if err != nil || len(resp.Body) != len(body) {
			b.Fatal(err, len(resp.Body))
		}
	}
}

// BenchmarkDoFresh has Begin and Complete without Do beside it, so that the cost of Do is read off.
func BenchmarkDoFresh(b *testing.B) {
	resp := idem.Response{Body: []byte(strings.Repeat("b", 200)), TTL: time.Millisecond}
	names := make([]string, 1<<12)
	for i := range names {
		names[i] = fmt.Sprintf("order-%04d", i)
	}
	fresh := func(i int) idem.Request { // a scope and key that no other i has
		return idem.Request{Scope: names[i>>12], Key: names[i&(1<<12-1)]}
	}
	b.Run("Do", func(b *testing.B) {
		e := openEngine(b, idem.Config{})
		ctx, runs, i := b.Context(), 0, 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			_, err := idem.Do(ctx, e, fresh(i), func(context.Context, idem.Claim) (idem.Response, error) {
				runs++
				return resp, nil
			})
			if err != nil || runs != i {
				b.Fatal(err, runs, i)
			}
		}
	})
	b.Run("BeginComplete", func(b *testing.B) {
		e := openEngine(b, idem.Config{})
		ctx, i := b.Context(), 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			out, err := e.Begin(ctx, fresh(i))
			if err != nil || out.State != idem.Fresh {
				b.Fatal(err, out.State)
			}
			if err := e.Complete(ctx, out.Claim, resp); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A typed nil, whose Error panics, is a failure like any other: it ends the operation for good.
func TestPermanentErrorWithoutAText(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		runs := 0
		for range 2 {
			_, err := idem.Do(r.Context(), r, idem.Request{Key: "k"}, func(context.Context, idem.Claim) (idem.Response, error) {
				runs++
				var none *os.PathError
				return idem.Response{}, idem.Permanent(none)
			})
			_, failed := errors.AsType[*idem.FailedError](err)
			require.True(r, failed)
		}
		require.Equal(r, 1, runs)
	})
}
