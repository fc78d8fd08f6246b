package idem

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A queued caller waits for the key "k" of an engine of one shard, but has not come to look at its channel yet.
type queued struct {
	e   *Engine
	w   *waiters
	req Request
}

// queue has some caller claim "k" and another one wait for it.
func queue(t testing.TB, e *Engine) (Claim, queued) {
	t.Helper()
	out, err := e.Begin(t.Context(), Request{Key: "k"})
	require.NoError(t, err)
	require.Equal(t, Fresh, out.State)
	q := queued{e: e, req: Request{Key: "k", Wait: true}}
	q.w, err = e.shards[0].begin(&q.req, e.hash("", "k"), new(Outcome))
	require.NoError(t, err)
	require.NotNil(t, q.w)
	return out.Claim, q
}

// await lets the caller look, and reports whether it owns the key then.
func (q *queued) await(ctx context.Context) (Outcome, bool) {
	var out Outcome
	owner := q.e.shards[0].await(ctx, q.w, &q.req, q.e.hash("", "k"), &out)
	return out, owner
}

// Who comes for its grant when that has lapsed, and the key is Unknown, must not run the operation.
func TestGrantThatLapsedUnderHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openForTest(t, Config{Shards: 1, OnLeaseExpiry: Hold, Lease: time.Second})
		c, q := queue(t, e)
		require.NoError(t, e.Abandon(t.Context(), c))
		time.Sleep(time.Second + 3*sweepPause)
		synctest.Wait()
		_, owner := q.await(t.Context())
		require.False(t, owner)
		rec, found, err := e.Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, Unknown, rec.State)
		require.Zero(t, e.Stats().Waiting)
		checkInvariants(t, e)
	})
}

// A caller whose ctx is done when it finds its grant passes the claim on: it must not run anything any more.
func TestGrantForWhoseContextIsDone(t *testing.T) {
	for range 50 { // which of the two it sees first is chance
		e := openForTest(t, Config{Shards: 1})
		c, q := queue(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, e.Abandon(t.Context(), c))
		_, owner := q.await(ctx)
		require.False(t, owner)
		require.Zero(t, e.Len(), "the key is free")
		require.Zero(t, e.Stats().Waiting)
		checkInvariants(t, e)
	}
}

// A claim may be taken from a caller again before that has come for the first grant. The last one counts.
func TestGrantThatIsReplaced(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	_, q := queue(t, e)
	for range 3 {
		found, err := e.Forget(t.Context(), "", "k")
		require.NoError(t, err)
		require.True(t, found)
	}
	out, owner := q.await(t.Context())
	require.True(t, owner)
	require.NoError(t, e.Complete(t.Context(), out.Claim, Response{}))
	require.EqualValues(t, 3, e.Stats().HandedOver)
	checkInvariants(t, e)
}

// Who leaves late, when those who waited with it were told already, takes nobody off who waits for another record in
// the same cell.
func TestLeavingLateDisturbsNobody(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	c, late := queue(t, e)
	require.NoError(t, e.Complete(t.Context(), c, Response{}))
	_, err := e.Forget(t.Context(), "", "k")
	require.NoError(t, err)
	c, q := queue(t, e)
	require.Equal(t, late.w.key, q.w.key, "or else this shows nothing")

	e.shards[0].leave(late.w, &late.req, e.hash("", "k"))
	require.Equal(t, 1, e.Stats().Waiting)
	require.NoError(t, e.Complete(t.Context(), c, Response{}))
	select {
	case _, granted := <-q.w.grant:
		require.False(t, granted)
	default:
		t.Fatal("nobody told who waits that the key is done")
	}
}
