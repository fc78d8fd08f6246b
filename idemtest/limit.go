package idemtest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func limitRows() []Row {
	return []Row{{
		Name: "limit/response",
		Explanation: "A response whose header and body are together larger than the limit is recorded as Truncated, " +
			"without its body, and Complete returns ErrTruncated: the operation did run and must not run " +
			"again before its TTL is over.",
		needs:  MaxResponseBytes,
		config: Config{MaxResponseBytes: 1000},
		run:    responseLimit,
	}, {
		Name: "limit/records",
		Explanation: "A full store refuses new keys with ErrFull and evicts nothing. What is there is replayed, and " +
			"claims can be completed. There is room again when a record's time is over, a claim is given up, or a key is forgotten.",
		needs:  MaxRecords,
		config: Config{MaxRecords: 8},
		run:    recordLimit,
	}}
}

// responseLimit is about the operation that ran and whose response is too large: it must neither run again
// nor take all the memory there is.
func responseLimit(r *rig) {
	sizes := []struct {
		header, body int
		fits         bool
	}{
		{0, 999, true}, {0, 1000, true}, {0, 1001, false}, {0, 1 << 20, false}, {999, 0, true}, {1000, 0, true},
		{1001, 0, false}, {1 << 20, 1, false}, {500, 499, true}, {500, 500, true}, {500, 501, false}, {1, 1000, false},
	}
	for _, size := range sizes {
		req := r.request(fmt.Sprint(size.header, " and ", size.body))
		resp := idem.Response{Status: 422, Failed: true}
		resp.Header, resp.Body = bytes.Repeat([]byte("h"), size.header), bytes.Repeat([]byte("b"), size.body)
		c := r.fresh(req)
		crowd := r.crowd(1, req)
		err := r.store.Complete(r.Context(), c, resp)
		if size.fits {
			require.NoError(r, err, req.Key)
			r.same(resp, r.expect(idem.Replay, req).Response, req.Key)
			crowd.next(idem.Replay)
			continue
		}
		require.ErrorIs(r, err, idem.ErrTruncated, req.Key)
		for _, got := range []idem.Response{r.expect(idem.Replay, req).Response, crowd.next(idem.Replay).Response} {
			require.True(r, got.Truncated, "%s: truncated", req.Key)
			require.Empty(r, got.Body, req.Key)
			require.LessOrEqual(r, len(got.Header), 1000, req.Key)
			require.Equal(r, resp.Status, got.Status, req.Key)
			require.True(r, got.Failed, req.Key)
		}
		r.expect(idem.Mismatch, foreign(req))
	}
	req := r.request("short-lived")
	c := r.fresh(req)
	var err error
	large := lasting(text(string(bytes.Repeat([]byte("b"), 2000))), r.short())
	set := timed(func() { err = r.store.Complete(r.Context(), c, large) })
	require.ErrorIs(r, err, idem.ErrTruncated)
	r.sleepPast(set, r.short())
	r.expect(idem.Fresh, req)
}

// recordLimit is for stores that make room by forgetting what they promised to remember.
func recordLimit(r *rig) {
	const n = 8
	requests := make([]idem.Request, n)
	claims := make([]idem.Claim, n)
	for i := range n {
		requests[i] = r.request(fmt.Sprint(i))
		claims[i] = r.fresh(requests[i])
	}
	// One half gets done, and the first of it does not live long. The other half stays in progress.
	for _, c := range claims[1 : n/2] {
		r.complete(c, text("done"))
	}
	set := timed(func() { r.complete(claims[0], lasting(text("done"), r.short())) })
	more := r.request("one more")
	var err error
	asked := timed(func() { _, err = r.store.Begin(r.Context(), more) })
	if asked.to.Before(set.from.Add(r.short() - r.maker.Resolution)) {
		require.ErrorIs(r, err, idem.ErrFull)
	}
	for _, req := range requests[1 : n/2] {
		r.replays("done", req)
		r.expect(idem.Mismatch, foreign(req))
	}
	for i, c := range claims[n/2:] {
		req := requests[n/2+i]
		r.expect(idem.InProgress, req)
		r.complete(c, text("done"))
		r.replays("done", req)
	}
	r.sleepPast(set, r.short())
	// When there is room, and for whom, is seen by asking until Begin is not refused.
	for range n + 1 {
		r.abandon(r.roomFor(more))
	}
	for range n + 1 {
		r.roomFor(more)
		if !r.inspects() {
			break
		}
		r.forget(more.Key)
	}
}

// roomFor claims a key in a store that is about to have room.
func (r *rig) roomFor(req idem.Request) (c idem.Claim) {
	r.Helper()
	r.eventually(func() bool {
		out, err := r.store.Begin(r.Context(), req)
		if !errors.Is(err, idem.ErrFull) {
			require.NoError(r, err)
		}
		c = out.Claim
		return out.State != 0
	}, "room for one more key")
	return c
}
