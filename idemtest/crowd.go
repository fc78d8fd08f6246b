package idemtest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// A crowd is a number of callers that wait, most often for one key. Nothing tells whether a caller has begun
// to wait, so what a row wants of a crowd must hold as well for callers that come late.
type crowd struct {
	r       *rig
	answers chan answer
	leave   []context.CancelCauseFunc // by the order in which they came
}

// An answer is what a caller was told after it had waited.
type answer struct {
	who int // by the order in which they came
	out idem.Outcome
	err error
	at  time.Time
}

// crowd has n callers wait for a key, and gives them time to begin to.
func (r *rig) crowd(n int, req idem.Request) *crowd {
	c := r.newCrowd(n, req)
	r.settle()
	return c
}

// newCrowd is crowd for rows that are about callers that may be late.
func (r *rig) newCrowd(n int, req idem.Request) *crowd {
	// Answers must find room, so that nobody is left behind when a row has failed.
	c := &crowd{r: r, answers: make(chan answer, 100)}
	for range n {
		c.join(req)
	}
	return c
}

// join adds a caller.
func (c *crowd) join(req idem.Request) {
	ctx, cancel := context.WithCancelCause(c.r.Context())
	c.joinWith(ctx, cancel, req)
}

// joinWith adds a caller with a context of its own.
func (c *crowd) joinWith(ctx context.Context, leave context.CancelCauseFunc, req idem.Request) {
	who := len(c.leave)
	c.leave = append(c.leave, leave)
	c.r.calls.Go(func() {
		out, err := c.r.store.Begin(ctx, waiting(req))
		c.answers <- answer{who, out, err, time.Now()}
	})
}

// any returns the next answer that comes.
func (c *crowd) any() answer {
	c.r.Helper()
	select {
	case a := <-c.answers:
		return a
	case <-time.After(c.r.stretch(patience)):
		require.FailNow(c.r, "those who wait go on waiting")
		return answer{}
	}
}

// next returns the next outcome, which must have the state.
func (c *crowd) next(want idem.State) idem.Outcome {
	c.r.Helper()
	a := c.any()
	require.NoError(c.r, a.err)
	require.Equal(c.r, want.String(), a.out.State.String(), "state that caller %d was woken with", a.who)
	return a.out
}

// all wants n callers to be woken with the state.
func (c *crowd) all(n int, want idem.State) {
	c.r.Helper()
	for range n {
		c.next(want)
	}
}

// quiet wants everybody to go on waiting.
func (c *crowd) quiet() {
	c.r.Helper()
	c.r.settle()
	select {
	case a := <-c.answers:
		require.FailNow(c.r, "a caller did not go on waiting", "caller %d: %v, %v", a.who, a.out.State, a.err)
	default:
	}
}
