package verify_test

import (
	"cmp"
	"context"
	"slices"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-5bb5eb37/idem"
)

// A waiter is a caller that the engine keeps waiting.
type waiter struct {
	req     idem.Request
	cancel  context.CancelFunc
	expires time.Time // of its context
	gone    bool      // cancel was called
	answer  chan answer
}

type answer struct {
	*waiter
	out idem.Outcome
	err error
	at  time.Time
}

// wait begins and waits, a few times on one key. Who has nothing to wait for, or no room, is answered
// at once.
func (m *machine) wait(t *rapid.T) {
	key := drawKey(t)
	for range rapid.IntRange(1, perKey+1).Draw(t, "callers") {
		m.waitFor(t, drawRequest(t, key))
	}
}

func (m *machine) waitFor(t *rapid.T, req idem.Request) {
	req.Wait = true
	patience := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, 1000 * time.Hour}).Draw(t, "patience")
	w := &waiter{req: req, expires: time.Now().Add(patience), answer: make(chan answer, 1)}
	ctx, cancel := context.WithDeadline(context.Background(), w.expires)
	w.cancel = cancel
	c := m.at(req.Key, time.Now())
	waits := c.is == idem.InProgress && c.fingerprint == req.Fingerprint &&
		len(m.waiting) < inAll && len(m.waitersOf(req.Key)) < perKey
	go func() {
		out, err := m.engine.Begin(ctx, req)
		w.answer <- answer{w, out, err, time.Now()}
	}()
	synctest.Wait()
	if waits {
		m.waiting = append(m.waiting, w)
		m.settle(t) // nobody is answered
		return
	}
	a := <-w.answer
	m.answered(t, req, a.out, a.err, a.at)
	cancel()
}

func (m *machine) waitersOf(key string) []*waiter {
	return slices.DeleteFunc(slices.Clone(m.waiting), func(w *waiter) bool { return w.req.Key != key })
}

// settle takes the answers of those who wait no more, and checks each at the time at which it came.
func (m *machine) settle(t *rapid.T) {
	synctest.Wait()
	var answers []answer
	for _, w := range slices.Clone(m.waiting) {
		select {
		case a := <-w.answer:
			answers = append(answers, a)
		default:
		}
	}
	slices.SortStableFunc(answers, func(a, b answer) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.out.Claim.Token, b.out.Claim.Token))
	})
	for _, a := range answers {
		if a.err == nil && a.out.State == idem.Fresh {
			require.Same(t, m.waitersOf(a.req.Key)[0], a.waiter, "who has waited longest is the next owner")
		}
		m.waiting = slices.DeleteFunc(m.waiting, func(w *waiter) bool { return w == a.waiter })
		a.cancel()
		if a.gone && a.err != nil {
			require.ErrorIs(t, a.err, context.Canceled)
			continue
		}
		if a.err != nil {
			require.ErrorIs(t, a.err, context.DeadlineExceeded)
			require.Equal(t, a.expires, a.at)
			continue
		}
		require.False(t, a.at.After(m.cells[a.req.Key].ends.Add(late)), "a waiter was woken late")
		m.answered(t, a.req, a.out, a.err, a.at)
	}
	now := time.Now()
	for _, w := range m.waiting {
		c := m.at(w.req.Key, now.Add(-late))
		require.Equal(t, idem.InProgress, c.is, "a waiter sleeps though there is nothing to wait for")
		require.True(t, now.Before(w.expires))
	}
}

// cancel ends a waiter's context, perhaps while the claim is on its way: then that caller takes it, or
// the next one gets it.
func (m *machine) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		return
	}
	w := rapid.SampledFrom(m.waiting).Draw(t, "waiter")
	w.gone = true
	owned := m.at(w.req.Key, time.Now())
	owner := idem.Claim{Scope: "s", Key: w.req.Key, Token: owned.token, Fingerprint: owned.fingerprint}
	race := rapid.SampledFrom([]string{"none", "abandon first", "cancel first"}).Draw(t, "race")
	if race == "cancel first" {
		w.cancel()
	}
	if race != "none" {
		require.NoError(t, m.engine.Abandon(context.Background(), owner))
		owned.is = absent
	}
	w.cancel()
	m.settle(t)
	require.NotContains(t, m.waiting, w)
}
