package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func TestTieredSharesQuestions(t *testing.T) {
	const callers = 2_000
	// crowd has callers ask at the same time, and returns how often each state was the answer.
	crowd := func(r tier, req idem.Request) map[string]int {
		states := make(chan idem.State, callers)
		for range callers {
			go func() { states <- r.begin(req).State }()
		}
		counts := map[string]int{}
		for range callers {
			counts[(<-states).String()]++
		}
		return counts
	}
	slowly := func(_ context.Context, _ string) error {
		time.Sleep(time.Millisecond)
		return nil
	}
	waiting := payment
	waiting.Wait = true
	run := func(name string, test func(r tier)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newTier(t, idem.Config{MaxWaitersPerKey: callers})) })
		})
	}
	run("of those who wait", func(r tier) {
		r.remote.before = slowly
		claim := r.expect(idem.Fresh, payment).Claim
		r.remote.calls()
		go func() {
			time.Sleep(time.Second)
			_ = r.Complete(context.Background(), claim, idem.Response{Body: []byte("paid")})
		}()
		require.Equal(r, map[string]int{"replay": callers}, crowd(r, waiting))
		require.LessOrEqual(r, r.remote.begins.Load(), int64(2))
		require.LessOrEqual(r, r.remote.lookups.Load(), int64(2))
	})
	run("of those who do not", func(r tier) {
		r.remote.before = slowly
		require.Equal(r, map[string]int{"fresh": 1, "in progress": callers - 1}, crowd(r, payment))
		require.LessOrEqual(r, r.remote.begins.Load(), int64(3))
	})
	run("about what is done", func(r tier) {
		r.done(payment, idem.Response{})
		r.remote.before = slowly
		r.remote.calls()
		require.Equal(r, map[string]int{"replay": callers}, crowd(r, payment))
		require.Equal(r, fetched, r.remote.calls())
	})
	run("that fail", func(r tier) {
		down := errors.New("down")
		r.remote.before = func(ctx context.Context, method string) error {
			_ = slowly(ctx, method)
			return down
		}
		errs := make(chan error, callers)
		for range callers {
			go func() {
				_, err := r.Begin(r.Context(), waiting)
				errs <- err
			}()
		}
		for range callers {
			require.ErrorIs(r, <-errs, down)
		}
		require.LessOrEqual(r, r.remote.begins.Load(), int64(2))
	})
	run("without sharing the bytes of the answer", func(r tier) {
		claim := r.expect(idem.Fresh, payment).Claim
		answers := make(chan idem.Outcome, 10)
		for range cap(answers) {
			go func() { answers <- r.begin(waiting) }()
		}
		synctest.Wait()
		require.NoError(r, r.Complete(r.Context(), claim, idem.Response{Header: []byte("header"), Body: []byte("paid")}))
		for range cap(answers) {
			resp := (<-answers).Response
			require.Equal(r, "headerpaid", string(resp.Header)+string(resp.Body))
			clear(resp.Header)
			clear(resp.Body)
		}
	})
	run("without sharing the buffer for the answer", func(r tier) {
		claim := r.expect(idem.Fresh, payment).Claim
		answers := make(chan string, 10)
		for range cap(answers) {
			go func() {
				req, buf := waiting, make([]byte, 100)
				req.Buf = buf
				resp := r.begin(req).Response
				answers <- string(resp.Header) + string(resp.Body)
				copy(buf, "what the caller uses its buffer for next")
			}()
		}
		synctest.Wait()
		require.NoError(r, r.Complete(r.Context(), claim, idem.Response{Header: []byte("header"), Body: []byte("paid")}))
		for range cap(answers) {
			require.Equal(r, "headerpaid", <-answers)
		}
		r.replays("paid", payment)
	})
	run("but not the end of a caller's context", func(r tier) {
		claim := r.expect(idem.Fresh, payment).Claim
		left := errors.New("left")
		ctx, leave := context.WithCancelCause(r.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := r.Begin(ctx, waiting)
			gone <- err
		}()
		synctest.Wait()
		answer := make(chan idem.Outcome, 1)
		go func() { answer <- r.begin(waiting) }()
		synctest.Wait()
		leave(left)
		require.ErrorIs(r, <-gone, left)
		require.NoError(r, r.Abandon(r.Context(), claim))
		require.Equal(r, idem.Fresh, (<-answer).State)
	})
}

func TestTieredWithoutRoom(t *testing.T) {
	// asks wants every replay to be asked of the remote store.
	asks := func(r tier, body string) {
		r.Helper()
		r.done(payment, idem.Response{Body: []byte(body)})
		r.remote.calls()
		for range 3 {
			r.replays(body, payment)
		}
		require.Equal(r, int64(3), r.remote.begins.Load())
	}
	t.Run("for one more record", func(t *testing.T) {
		r := newTier(t, idem.Config{MaxRecords: 1})
		r.known("first", idem.Request{Key: "first"})
		asks(r, "paid")
		require.Equal(t, 1, r.local.Len())
		r.remote.calls()
		r.replays("first", idem.Request{Key: "first"})
		require.Equal(t, silence, r.remote.calls(), "nothing was evicted")
	})
	t.Run("for a large response", func(t *testing.T) {
		asks(newTier(t, idem.Config{MaxResponseBytes: 15}), "paid")
		r := newTier(t, idem.Config{MaxResponseBytes: 16})
		r.known("paid", payment)
		r.replays("paid", payment)
		require.Equal(t, silence, r.remote.calls())
	})
	t.Run("for a long key", func(t *testing.T) {
		asks(newTier(t, idem.Config{MaxKeyBytes: 4}), "paid")
	})
	t.Run("because the local engine is closed", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		require.NoError(t, r.local.Close())
		asks(r, "paid")
		found, err := r.Forget(t.Context(), payment.Scope, payment.Key)
		require.NoError(t, err)
		require.True(t, found)
	})
	t.Run("for more who wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newTier(t, idem.Config{MaxWaitersPerKey: 1})
			claim := r.expect(idem.Fresh, payment).Claim
			waiting := payment
			waiting.Wait = true
			answer := make(chan idem.Outcome, 1)
			go func() { answer <- r.begin(waiting) }()
			synctest.Wait()
			require.Positive(t, r.expect(idem.InProgress, waiting).Remaining)
			require.NoError(t, r.Complete(t.Context(), claim, idem.Response{}))
			require.Equal(t, idem.Replay, (<-answer).State)
		})
	})
}

// BenchmarkTiered replays known keys through a tiered store, and from an engine of its own: one that is hot, and
// random ones of ten thousand.
func BenchmarkTiered(b *testing.B) {
	for _, live := range []int{1, 10_000} {
		keys := benchKeys(live)
		b.Run(fmt.Sprintf("live=%d/store=engine", live), func(b *testing.B) {
			e := benchEngine(b, idem.Config{})
			fill(b, e, keys)
			benchReplay(b, e, keys)
		})
		b.Run(fmt.Sprintf("live=%d/store=tiered", live), func(b *testing.B) {
			remote := &distant{Engine: benchEngine(b, idem.Config{})}
			store := idem.Tiered(benchEngine(b, idem.Config{}), remote)
			fill(b, store, keys)
			for i, replay := 0, replayer(b, store); i < live; i++ {
				replay(keys.at(i))
			}
			remote.calls()
			benchReplay(b, store, keys)
			require.Equal(b, silence, remote.calls())
		})
	}
}

// Callers with different fingerprints get different answers, although they ask for the same key at a time.
func TestTieredQuestionsOfOtherRequests(t *testing.T) {
	inBubble(t, "while one is asked", func(r tier) {
		r.done(payment, idem.Response{Body: []byte("paid")})
		r.remote.before = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		states := make(chan string, 3)
		for _, req := range []idem.Request{payment, payment, otherPayment} {
			go func() { states <- r.begin(req).State.String() }()
			synctest.Wait()
		}
		require.ElementsMatch(r, []string{"replay", "replay", "mismatch"}, []string{<-states, <-states, <-states})
	})
}
