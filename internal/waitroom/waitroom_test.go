package waitroom_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

type (
	look = waitroom.Look[int]
	room = waitroom.Room[int]
)

var (
	key     = waitroom.Key{Scope: "s", Key: "k"}
	errLeft = errors.New("left")
	errDown = errors.New("store down")
)

// A stub is the store that tests look at: what it says is set from outside.
type stub struct {
	mu    sync.Mutex
	says  look
	takes time.Duration
	looks []string // by whom
}

func (s *stub) delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

func (s *stub) say(l look) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = l
}

// as returns the look of a caller. A Fresh answer, which is Mine, is given once, then the key is in progress.
func (s *stub) as(who string) func(context.Context, int) look {
	return func(context.Context, int) look {
		says, takes := s.take(who)
		time.Sleep(takes)
		return says
	}
}

func (s *stub) take(who string) (says look, takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, who)
	says = s.says
	if says.Verdict == waitroom.Mine {
		s.says = inProgress
	}
	return says, s.takes
}

// looked returns who has looked since the last call.
func (s *stub) looked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	looks := s.looks
	s.looks = nil
	return looks
}

var (
	inProgress = look{Verdict: waitroom.Again, After: time.Hour}
	fresh      = look{Verdict: waitroom.Mine, Result: 1}
	done       = look{Verdict: waitroom.Everyones, Result: 2}
)

// An answer is what a caller of Wait got.
type answer struct {
	who    string
	result int
	err    error
	at     time.Time
}

// A hall is a room with callers, in a bubble of fake time.
type hall struct {
	*testing.T
	*room
	store   stub
	answers chan answer
}

// in runs a test in a bubble.
func in(t *testing.T, name string, cfg waitroom.Config, test func(h *hall)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &hall{T: t, room: waitroom.New[int](cfg), answers: make(chan answer, 20_000)}
			h.store.say(inProgress)
			test(h)
			h.Close()
			synctest.Wait()
			require.Zero(t, h.Waiting())
			require.Zero(t, h.Lines())
		})
	})
}

// comesFor has a caller wait for k, until its look or its sleep.
func (h *hall) comesFor(ctx context.Context, k waitroom.Key, who string, look func(context.Context, int) look) {
	go func() {
		result, err := h.Wait(ctx, k, look)
		h.answers <- answer{who, result, err, time.Now()}
	}()
	synctest.Wait()
}

// come has callers wait for the key, one after the other.
func (h *hall) come(callers ...string) {
	for _, who := range callers {
		h.comesFor(h.Context(), key, who, h.store.as(who))
	}
}

// told returns what callers were told since the last call, by name.
func (h *hall) told() map[string]any {
	synctest.Wait()
	told := map[string]any{}
	for len(h.answers) > 0 {
		a := <-h.answers
		if told[a.who] = a.result; a.err != nil {
			told[a.who] = a.err
		}
	}
	return told
}

// is is short for what told returns.
type is = map[string]any

func TestLooking(t *testing.T) {
	in(t, "the first in line looks, and its answer is for all", waitroom.Config{}, func(h *hall) {
		h.come("a", "b", "c")
		require.Equal(h, []string{"a"}, h.store.looked())
		require.Equal(h, 3, h.Waiting())
		require.Empty(h, h.told())
		h.store.say(done)
		h.Hint("s", "k")
		require.Equal(h, is{"a": 2, "b": 2, "c": 2}, h.told())
		require.Equal(h, []string{"a"}, h.store.looked())
		require.Zero(h, h.Waiting())
	})
	in(t, "a lone caller is answered at once", waitroom.Config{}, func(h *hall) {
		for _, says := range []look{fresh, done, {Verdict: waitroom.Everyones, Err: errDown}} {
			h.store.say(says)
			h.come("a")
			want := is{"a": says.Result}
			if says.Err != nil {
				want["a"] = says.Err
			}
			require.Equal(h, want, h.told())
		}
	})
	in(t, "a failure of the store is everyone's", waitroom.Config{}, func(h *hall) {
		h.come("a", "b")
		h.store.say(look{Verdict: waitroom.Everyones, Err: errDown})
		h.Hint("s", "k")
		require.Equal(h, is{"a": errDown, "b": errDown}, h.told())
	})
	in(t, "a claim is handed over, first come first served", waitroom.Config{}, func(h *hall) {
		h.come("a", "b", "c", "d")
		for _, who := range []string{"a", "b", "c", "d"} {
			require.Empty(h, h.told())
			h.store.looked()
			h.store.say(fresh)
			h.Hint("s", "k")
			require.Equal(h, is{who: 1}, h.told())
			if who != "d" {
				require.Equal(h, []string{who, string(who[0] + 1)}, h.store.looked(), "the next one looks at once")
			}
		}
	})
	in(t, "the number of looks in a row is counted over callers", waitroom.Config{}, func(h *hall) {
		var attempts []int
		counting := func(_ context.Context, attempt int) look {
			attempts = append(attempts, attempt)
			return h.store.as("")(nil, 0)
		}
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, key, "a", counting)
		h.comesFor(h.Context(), key, "b", counting)
		h.Hint("s", "k")
		synctest.Wait()
		cancel(errLeft)
		synctest.Wait()
		h.Hint("s", "k")
		synctest.Wait()
		require.Equal(h, []int{0, 1, 2}, attempts)
		h.store.say(fresh)
		h.comesFor(h.Context(), key, "c", counting)
		h.Hint("s", "k")
		synctest.Wait()
		require.Equal(h, []int{0, 1, 2, 3, 0}, attempts, "anew, for it is another owner")
	})
	in(t, "callers with another fingerprint are answered by themselves", waitroom.Config{}, func(h *hall) {
		for i := range 4 {
			k := key
			k.Fingerprint[0] = byte(i)
			h.comesFor(h.Context(), k, fmt.Sprint(i), h.store.as(fmt.Sprint(i)))
		}
		require.Equal(h, []string{"0", "1", "2", "3"}, h.store.looked())
		require.Equal(h, 4, h.Lines())
		h.Hint("s", "k")
		synctest.Wait()
		require.ElementsMatch(h, []string{"0", "1", "2", "3"}, h.store.looked(), "a hint is for all of them")
		h.Hint("sk", "")
		h.Hint("", "sk")
		synctest.Wait()
		require.Empty(h, h.store.looked(), "other keys")
		h.store.say(done)
		h.HintAll()
		require.Len(h, h.told(), 4)
	})
	in(t, "lines with other fingerprints end in any order", waitroom.Config{}, func(h *hall) {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}} {
			var leave [3]context.CancelCauseFunc
			for i := range leave {
				var ctx context.Context
				ctx, leave[i] = context.WithCancelCause(h.Context())
				k := key
				k.Fingerprint[0] = byte(i)
				h.comesFor(ctx, k, fmt.Sprint(i), h.store.as(""))
			}
			for n, i := range order {
				leave[i](errLeft)
				require.Equal(h, is{fmt.Sprint(i): errLeft}, h.told())
				require.Equal(h, 2-n, h.Lines())
			}
		}
	})
}

func TestManyCallersCostOneLook(t *testing.T) {
	const callers = 10_000
	in(t, "for each hint and each fallback", waitroom.Config{MaxWaitersPerKey: callers}, func(h *hall) {
		for range callers {
			go func() {
				result, err := h.Wait(h.Context(), key, h.store.as(""))
				h.answers <- answer{"", result, err, time.Now()}
			}()
		}
		synctest.Wait()
		require.Equal(h, callers, h.Waiting())
		require.Len(h, h.store.looked(), 1)
		for range 5 {
			h.Hint("s", "k")
			synctest.Wait()
			require.Len(h, h.store.looked(), 1)
		}
		time.Sleep(time.Minute + time.Second)
		looks := len(h.store.looked())
		require.GreaterOrEqual(h, looks, 12, "every 5 s")
		require.LessOrEqual(h, looks, 16)
		h.store.say(done)
		h.Hint("s", "k")
		synctest.Wait()
		require.Len(h, h.store.looked(), 1)
		require.Len(h, h.answers, callers)
		for range callers {
			require.Equal(h, done.Result, (<-h.answers).result)
		}
	})
}

func TestHints(t *testing.T) {
	in(t, "that come during a look cause another right after it", waitroom.Config{}, func(h *hall) {
		h.store.delay(time.Second)
		h.come("a")
		h.store.say(done)
		h.Hint("s", "k")
		time.Sleep(time.Second)
		require.Empty(h, h.told())
		require.Equal(h, []string{"a", "a"}, h.store.looked())
		time.Sleep(time.Second)
		require.Equal(h, is{"a": 2}, h.told())
	})
	in(t, "that come during a look are not lost when the looker gives up", waitroom.Config{}, func(h *hall) {
		ctx, cancel := context.WithTimeoutCause(h.Context(), time.Second/2, errLeft)
		defer cancel()
		h.store.delay(time.Second)
		h.comesFor(ctx, key, "a", h.store.as("a"))
		h.store.delay(0)
		h.come("b")
		h.store.say(done)
		h.Hint("s", "k")
		time.Sleep(time.Second)
		require.Equal(h, is{"a": errLeft, "b": 2}, h.told())
	})
	in(t, "are forgotten once a look has begun after them", waitroom.Config{}, func(h *hall) {
		h.come("a")
		h.Hint("s", "k")
		h.Hint("s", "k")
		synctest.Wait()
		require.Len(h, h.store.looked(), 2)
		time.Sleep(time.Second / 2)
		require.Empty(h, h.store.looked())
	})
	in(t, "are not needed", waitroom.Config{}, func(h *hall) {
		h.come("a", "b")
		h.store.say(done)
		began := time.Now()
		time.Sleep(10 * time.Second)
		require.Equal(h, is{"a": 2, "b": 2}, h.told())
		require.Less(h, time.Since(began), 11*time.Second)
	})
	in(t, "for nobody do nothing", waitroom.Config{}, func(h *hall) {
		h.Hint("s", "k")
		h.HintAll()
	})
	in(t, "an answer is not for those who came after the look began", waitroom.Config{}, func(h *hall) {
		h.store.say(done)
		h.store.delay(time.Second)
		h.come("a", "b", "c")
		newer := done
		newer.Result++
		h.store.say(newer)
		time.Sleep(time.Second)
		require.Equal(h, is{"a": 2}, h.told())
		time.Sleep(time.Second)
		require.Equal(h, is{"b": 3, "c": 3}, h.told())
		require.Equal(h, []string{"a", "b"}, h.store.looked())
	})
}

func TestBounds(t *testing.T) {
	in(t, "callers of one key", waitroom.Config{MaxWaitersPerKey: 2}, func(h *hall) {
		h.come("a", "b", "c")
		require.Equal(h, is{"c": waitroom.ErrCrowded}, h.told())
		forged := key
		forged.Fingerprint[0]++
		h.comesFor(h.Context(), forged, "x", h.store.as("x"))
		require.Equal(h, is{"x": waitroom.ErrCrowded}, h.told(), "other fingerprints make no room")
		other := key
		other.Key = "other"
		h.comesFor(h.Context(), other, "d", h.store.as("d"))
		require.Empty(h, h.told())
		h.store.say(fresh)
		h.Hint("s", "k")
		require.Equal(h, is{"a": 1}, h.told())
		h.come("e", "f")
		require.Equal(h, is{"f": waitroom.ErrCrowded}, h.told(), "who leaves makes room")
	})
	in(t, "callers in all", waitroom.Config{MaxWaiters: 2}, func(h *hall) {
		for _, who := range []string{"a", "b", "c"} {
			h.comesFor(h.Context(), waitroom.Key{Key: who}, who, h.store.as(who))
		}
		require.Equal(h, is{"c": waitroom.ErrCrowded}, h.told())
		h.store.say(done)
		h.Hint("", "a")
		require.Equal(h, is{"a": 2}, h.told())
		h.come("d")
		require.Equal(h, is{"d": 2}, h.told())
	})
	in(t, "nobody", waitroom.Config{MaxWaitersPerKey: -1}, func(h *hall) {
		h.come("a")
		require.Equal(h, is{"a": waitroom.ErrCrowded}, h.told())
	})
	in(t, "none after Close, which ends all waits", waitroom.Config{}, func(h *hall) {
		h.come("a", "b")
		h.comesFor(h.Context(), waitroom.Key{}, "c", h.store.as("c"))
		h.Close()
		h.Close()
		require.Equal(h, is{"a": waitroom.ErrClosed, "b": waitroom.ErrClosed, "c": waitroom.ErrClosed}, h.told())
		h.store.looked()
		h.come("d")
		require.Equal(h, is{"d": waitroom.ErrClosed}, h.told())
		require.Empty(h, h.store.looked())
	})
}

func TestFallback(t *testing.T) {
	t.Run("grows from 1 s to 5 s when the lease is long or not known", func(t *testing.T) {
		for _, after := range []time.Duration{time.Hour, 0, -time.Hour} {
			for attempt, want := range []float64{1, 2, 4, 5, 5, 5} {
				require.InDelta(t, want, waitroom.Fallback(attempt, after).Seconds(), 0)
			}
			require.Equal(t, 5*time.Second, waitroom.Fallback(math.MaxInt, after))
		}
	})
	t.Run("is a little after the end of the lease", func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := waitroom.Fallback(0, 100*time.Millisecond)
			require.Greater(t, d, 100*time.Millisecond)
			require.LessOrEqual(t, d, 121*time.Millisecond)
			seen[d] = true
		}
		require.Greater(t, len(seen), 10, "different times in different processes")
	})
	in(t, "can be set", waitroom.Config{Fallback: func(attempt int, after time.Duration) time.Duration {
		return after + time.Duration(attempt)*time.Minute
	}}, func(h *hall) {
		h.come("a")
		h.store.looked()
		time.Sleep(time.Hour - 1)
		require.Empty(h, h.store.looked())
		time.Sleep(1)
		synctest.Wait()
		require.Len(h, h.store.looked(), 1)
		time.Sleep(time.Hour + time.Minute - 1)
		require.Empty(h, h.store.looked())
		time.Sleep(1)
		synctest.Wait()
		require.Len(h, h.store.looked(), 1)
	})
}

// TestStringsAreCopied is about frameworks that use the memory of strings again when a request is over.
func TestStringsAreCopied(t *testing.T) {
	in(t, "", waitroom.Config{}, func(h *hall) {
		memory := []byte("k")
		ctx, cancel := context.WithCancelCause(h.Context())
		h.comesFor(ctx, waitroom.Key{Scope: "s", Key: unsafe.String(&memory[0], 1)}, "a", h.store.as("a"))
		h.come("b")
		cancel(errLeft)
		require.Equal(h, is{"a": errLeft}, h.told())
		memory[0] = '!'
		h.store.say(done)
		h.Hint("s", "k")
		require.Equal(h, is{"b": 2}, h.told())
	})
}

// TestLoneCallerAllocatesLittle is about the caller that a store sees most: one that finds what it looks for.
func TestLoneCallerAllocatesLittle(t *testing.T) {
	r := waitroom.New[int](waitroom.Config{})
	found := func(context.Context, int) look { return done }
	allocs := testing.AllocsPerRun(1000, func() {
		_, _ = r.Wait(context.Background(), key, found)
	})
	require.LessOrEqual(t, allocs, 5.0, "line, waiter, look, scope and key")
}
