package waitroom_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// A late context has passed its deadline, and does not know yet.
type late struct {
	context.Context //nolint:containedctx // that is what it is for

	end time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.end, true }

func TestLeaving(t *testing.T) {
	in(t, "a sleeper leaves with its own cause", waitroom.Config{}, func(h *hall) {
		h.come("a")
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "b", h.store.as("b"))
		h.come("c")
		cancel(errLeft)
		require.Equal(h, is{"b": errLeft}, h.told())
		require.Equal(h, 2, h.Waiting())
		h.store.say(done)
		h.Hint("s", "k")
		require.Equal(h, is{"a": 2, "c": 2}, h.told())
	})
	in(t, "a looker that leaves while it sleeps hands on when to look", waitroom.Config{}, func(h *hall) {
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "a", h.store.as("a"))
		h.come("b")
		time.Sleep(time.Second / 2)
		cancel(errLeft)
		require.Equal(h, is{"a": errLeft}, h.told())
		require.Equal(h, []string{"a"}, h.store.looked(), "nothing has happened that b would have to look at")
		time.Sleep(time.Second * 6 / 10)
		require.Equal(h, []string{"b"}, h.store.looked())
	})
	in(t, "a looker that leaves during its look hands on the looking", waitroom.Config{}, func(h *hall) {
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "a", func(ctx context.Context, _ int) look {
			<-ctx.Done()
			return look{Err: context.Cause(ctx), Verdict: waitroom.Everyones}
		})
		h.come("b", "c")
		cancel(errLeft)
		require.Equal(h, is{"a": errLeft}, h.told(), "its error is nobody else's")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		require.Equal(h, []string{"b"}, h.store.looked())
	})
	in(t, "a look fails at its deadline before the timer has fired", waitroom.Config{}, func(h *hall) {
		h.comesFor(late{h.Context(), time.Now()}, key, "a", func(_ context.Context, attempt int) look {
			if attempt == 0 {
				return inProgress
			}
			return look{Err: errLeft, Verdict: waitroom.Everyones} // the connection's
		})
		h.come("b")
		h.Hint("s", "k")
		require.Equal(h, is{"a": errLeft}, h.told(), "its error is nobody else's")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		require.Equal(h, []string{"b"}, h.store.looked())
	})
	in(t, "callers that leave one after the other do not all begin a look", waitroom.Config{}, func(h *hall) {
		looks := 0
		for range 1000 {
			ctx, cancel := context.WithTimeoutCause(h.Context(), time.Second, errLeft)
			defer cancel()
			h.comesFor(ctx, key, "", func(ctx context.Context, _ int) look {
				looks++
				<-ctx.Done()
				return look{Err: context.Cause(ctx)}
			})
			time.Sleep(time.Second / 10_000)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(h, h.Waiting())
		require.LessOrEqual(h, looks, 10, "in the 0.1 s in which they leave")
	})
	in(t, "the last of those who came before a look leaves during it", waitroom.Config{}, func(h *hall) {
		h.come("x")
		h.store.looked()
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "y", h.store.as("y"))
		h.store.say(look{Verdict: waitroom.Everyones, Result: 2})
		h.store.delay(time.Second)
		h.Hint("s", "k")
		synctest.Wait()
		h.store.delay(0)
		cancel(errLeft)
		require.Equal(h, is{"y": errLeft}, h.told())
		h.come("z")
		time.Sleep(time.Second)
		require.Equal(h, is{"x": 2, "z": 2}, h.told())
		require.Equal(h, []string{"x", "z"}, h.store.looked())
	})
	in(t, "a claim that comes to a caller whose context ended is its own", waitroom.Config{}, func(h *hall) {
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "a", func(context.Context, int) look {
			cancel(errLeft)
			return fresh
		})
		require.Equal(h, is{"a": 1}, h.told())
	})
	in(t, "a caller whose context has ended does not look", waitroom.Config{}, func(h *hall) {
		ctx, cancel := context.WithCancelCause(h.Context())
		cancel(errLeft)
		h.comesFor(ctx, key, "a", h.store.as("a"))
		require.Equal(h, is{"a": errLeft}, h.told())
		require.Empty(h, h.store.looked())
	})
	in(t, "all of them, in any order, and nobody is left behind", waitroom.Config{}, func(h *hall) {
		var leave [50]context.CancelCauseFunc
		for i := range leave {
			var ctx context.Context
			ctx, leave[i] = context.WithCancelCause(h.Context())
			h.comesFor(ctx, key, fmt.Sprint(i), h.store.as(fmt.Sprint(i)))
		}
		for i := range leave {
			at := (i*37 + 11) % len(leave)
			leave[at](errLeft)
			require.Equal(h, is{fmt.Sprint(at): errLeft}, h.told())
			require.Equal(h, len(leave)-1-i, h.Waiting())
		}
	})
	in(t, "a look that panics hands on the looking", waitroom.Config{}, func(h *hall) {
		go func() {
			defer func() { h.answers <- answer{who: "a", result: recover().(int)} }()
			_, _ = h.Wait(h.Context(), key, func(context.Context, int) look {
				time.Sleep(time.Second)
				panic(42)
			})
		}()
		synctest.Wait()
		h.comesFor(h.Context(), key, "b", func(context.Context, int) look {
			runtime.Goexit()
			return look{}
		})
		h.come("c")
		time.Sleep(time.Second)
		require.Equal(h, is{"a": 42}, h.told())
		require.Equal(h, []string{"c"}, h.store.looked())
	})
}

// Who comes during a look is counted for as long as it waits, and not with those whom the look answers.
func TestWaitingDuringALook(t *testing.T) {
	slow := func(h *hall) {
		h.store.say(done)
		h.store.delay(time.Second)
	}
	in(t, "callers that stay", waitroom.Config{}, func(h *hall) {
		slow(h)
		h.come("a", "b", "c")
		require.Equal(h, 3, h.Waiting())
		time.Sleep(time.Second)
		require.Equal(h, is{"a": 2}, h.told())
		require.Equal(h, 2, h.Waiting())
		time.Sleep(time.Second)
		require.Equal(h, is{"b": 2, "c": 2}, h.told())
		require.Zero(h, h.Waiting())
	})
	in(t, "a caller that leaves", waitroom.Config{}, func(h *hall) {
		slow(h)
		h.come("a")
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "b", h.store.as("b"))
		cancel(errLeft)
		require.Equal(h, is{"b": errLeft}, h.told())
		require.Equal(h, 1, h.Waiting())
		time.Sleep(time.Second)
		require.Equal(h, is{"a": 2}, h.told())
		require.Zero(h, h.Waiting())
	})
}

func TestBoundsOfOneKey(t *testing.T) {
	in(t, "with a fingerprint each", waitroom.Config{MaxWaitersPerKey: 2}, func(h *hall) {
		for i, who := range []string{"a", "b", "c"} {
			k := key
			k.Fingerprint[0] = byte(i)
			h.comesFor(h.Context(), k, who, h.store.as(who))
		}
		require.Equal(h, is{"c": waitroom.ErrCrowded}, h.told())
	})
	in(t, "by default", waitroom.Config{}, func(h *hall) {
		for i := range 1024 {
			h.come(fmt.Sprint(i))
		}
		require.Empty(h, h.told())
		h.come("one more")
		require.Equal(h, is{"one more": waitroom.ErrCrowded}, h.told())
	})
}
