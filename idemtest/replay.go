package idemtest

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func replayRows() []Row {
	return []Row{{
		Name: "replay/byte for byte",
		Explanation: "A done record is replayed byte for byte: status, header, body, whether it failed and whether it " +
			"was truncated, as often as it is asked for, with Wait or without. StoredAt says when, TTL is " +
			"zero.",
		run: replayByteForByte,
	}, {
		Name: "replay/bytes are copies",
		Explanation: "The store copies what it is passed, and what it returns is the caller's. Whatever either does to " +
			"its bytes afterwards, the next replay is what was recorded.",
		run: bytesAreCopies,
	}, {
		Name: "replay/into a buffer",
		Explanation: "A replay appends header and body to Buf[:0] and returns parts of it. A buffer that is too small, " +
			"or holds something, changes nothing in what is replayed, and the store keeps no hold of it.",
		run: replayIntoABuffer,
	}, {
		Name: "replay/stored at",
		Explanation: "StoredAt is when the response was recorded, by the store's clock: not when the key was claimed, " +
			"nor what the caller has put there.",
		run: storedAt,
	}, {
		Name: "replay/status of more than 32 bits",
		Explanation: "A status that does not fit into 32 bits is an error that changes nothing, or comes back as it is. " +
			"It must not become another one.",
		run: wideStatus,
	}}
}

// responses are those that stores like to get wrong.
func responses() map[string]idem.Response {
	var all []byte
	for i := range 16 * 256 {
		all = append(all, byte(i))
	}
	return map[string]idem.Response{
		"nothing":         {},
		"empty, not nil":  {Header: []byte{}, Body: []byte{}},
		"status alone":    {Status: 204},
		"header alone":    {Status: 201, Header: []byte("Location: /1\r\n")},
		"body alone":      {Status: 200, Body: []byte(`{"b":1, "a":1.0}`)},
		"every byte":      {Status: 200, Header: all, Body: bytes.Repeat(all, 16)},
		"a NUL":           {Status: 200, Header: []byte{0}, Body: []byte{0}},
		"invalid UTF-8":   {Status: 200, Header: []byte("\xff\xfe"), Body: []byte("\xc3(\xa0\xed\xa0\x80")},
		"failed":          {Status: 422, Body: []byte("card declined"), Failed: true},
		"failed, silent":  {Failed: true},
		"truncated":       {Status: 200, Header: []byte("h"), Truncated: true},
		"both":            {Status: 500, Failed: true, Truncated: true},
		"negative status": {Status: -1},
		"largest status":  {Status: math.MaxInt32},
		"smallest status": {Status: math.MinInt32},
		"looks like null": {Body: []byte("null"), Header: []byte("nil")},
		"looks like zero": {Body: []byte("0"), Header: []byte("false")},
	}
}

// replayByteForByte is for stores that keep responses as text, as JSON, or as what is true about them.
func replayByteForByte(r *rig) {
	for name, resp := range responses() {
		req := r.request(name)
		r.done(req, resp)
		var storedAt time.Time
		for i, req := range []idem.Request{req, waiting(req), req} {
			got := r.expect(idem.Replay, req)
			require.Zero(r, got.Remaining)
			require.Equal(r, idem.Claim{}, got.Claim, "a replay grants no claim")
			r.same(resp, got.Response, name)
			if i > 0 {
				require.True(r, storedAt.Equal(got.Response.StoredAt), "StoredAt stays as it is")
			}
			storedAt = got.Response.StoredAt
		}
	}
}

// same compares a response that was recorded just now with what the store returned. No bytes are no
// bytes: nil and empty are not told apart.
func (r *rig) same(want, got idem.Response, name string) {
	r.Helper()
	require.Equal(r, want.Status, got.Status, "%s: status", name)
	r.sameBytes(want.Header, got.Header, name+": header")
	r.sameBytes(want.Body, got.Body, name+": body")
	require.Equal(r, want.Failed, got.Failed, "%s: failed", name)
	require.Equal(r, want.Truncated, got.Truncated, "%s: truncated", name)
	require.Zero(r, got.TTL, "%s: TTL", name)
	// A server's clock may differ from ours, but not by so much that the dates were of no use.
	require.WithinDuration(r, time.Now(), got.StoredAt, time.Hour, "%s: StoredAt", name)
}

// bytesAreCopies is for stores in memory that keep, or hand out, the slice itself: buffers are used again.
func bytesAreCopies(r *rig) {
	want := idem.Response{Status: 200, Header: []byte("header"), Body: []byte("body")}
	passed := idem.Response{Status: 200, Header: bytes.Clone(want.Header), Body: bytes.Clone(want.Body)}
	req := r.request("k")
	c := r.fresh(req)
	crowd := r.crowd(2, req)
	r.complete(c, passed)
	spoil(passed)
	first, second := crowd.next(idem.Replay).Response, crowd.next(idem.Replay).Response
	spoil(first)
	r.same(want, second, "another waiter's response")
	// Two replays that are held at the same time.
	first, second = r.expect(idem.Replay, req).Response, r.expect(idem.Replay, req).Response
	spoil(first)
	r.same(want, second, "another caller's response")
	r.same(want, r.expect(idem.Replay, req).Response, "the record")

	// The header may lie in front of the body, but it must not grow into it.
	last := r.expect(idem.Replay, req).Response
	_ = append(last.Header, "grown"...)
	r.same(want, last, "a response whose header was appended to")
}

// sameBytes says where two pieces begin to differ: they may be long.
func (r *rig) sameBytes(want, got []byte, name string) {
	r.Helper()
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	require.True(r, bytes.Equal(want, got), "%s: %d bytes, want %d; they differ from the byte at %d on, which is %.20q, want %.20q",
		name, len(got), len(want), at, got[at:], want[at:])
}

// spoil overwrites a response's bytes.
func spoil(resp idem.Response) {
	for _, b := range [][]byte{resp.Header, resp.Body} {
		for i := range b {
			b[i] = '!'
		}
	}
}

// replayIntoABuffer is about callers that replay without allocating, and use one buffer for many requests.
func replayIntoABuffer(r *rig) {
	want := idem.Response{Status: 200, Header: []byte("header"), Body: []byte("and body")}
	req := r.request("k")
	r.done(req, want)

	req.Buf = bytes.Repeat([]byte("x"), 100)
	got := r.expect(idem.Replay, req).Response
	r.same(want, got, "into a large buffer")
	require.Same(r, &req.Buf[0], &got.Header[0], "the header lies at the start of the buffer")
	require.True(r, within(req.Buf, got.Body), "the body lies in the buffer")
	spoil(got)

	for _, room := range []int{0, 3, len("header") + 3, len("header" + "and body")} {
		req.Buf = make([]byte, room)
		r.same(want, r.expect(idem.Replay, req).Response, "into a small buffer")
	}

	// A buffer that is used for nothing must come to no harm either.
	req.Buf = make([]byte, 0, 100)
	r.expect(idem.Mismatch, foreign(req))
	other := r.request("other")
	other.Buf = req.Buf
	c := r.fresh(other)
	r.expect(idem.InProgress, other)
	r.complete(c, want)
	crowd := r.crowd(1, other)
	r.same(want, crowd.next(idem.Replay).Response, "into a buffer that was used before")
}

// within tells whether part is a piece of whole.
func within(whole, part []byte) bool {
	for i := range whole {
		if &whole[i] == &part[0] {
			return i+len(part) <= len(whole)
		}
	}
	return false
}

// storedAt is for stores that take the time of a record's claim, or of whole seconds. The store's clock may
// differ from ours, so that two records are compared.
func storedAt(r *rig) {
	early, late := r.request("early"), r.request("late")
	resp := text("done")
	resp.StoredAt = time.Unix(1, 0)
	c := r.fresh(late)
	first := timed(func() { r.done(early, resp) })
	r.sleep(2 * r.short())
	second := timed(func() { r.complete(c, resp) })
	r.apart(first, second, r.expect(idem.Replay, early).Response.StoredAt, r.expect(idem.Replay, late).Response.StoredAt)
}

// apart wants that the store's times of two events are as far apart as the events were.
func (r *rig) apart(first, second span, early, late time.Time) {
	r.Helper()
	grain := r.maker.Resolution + time.Millisecond // dates may be coarser than deadlines
	require.GreaterOrEqual(r, late.Sub(early), second.from.Sub(first.to)-grain, "between %v and %v", early, late)
	require.LessOrEqual(r, late.Sub(early), second.to.Sub(first.from)+grain, "between %v and %v", early, late)
}

// wideStatus is for stores whose column is narrower than an int.
func wideStatus(r *rig) {
	for _, wide := range []int64{1<<32 + 200, math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt64, math.MinInt64} {
		resp := idem.Response{Status: int(wide)}
		if int64(resp.Status) != wide {
			continue // an int has 32 bits here
		}
		req := r.request(fmt.Sprint(wide))
		c := r.fresh(req)
		if r.store.Complete(r.Context(), c, resp) != nil {
			r.expect(idem.InProgress, req)
			resp.Status = 200
			r.complete(c, resp)
		}
		r.same(resp, r.expect(idem.Replay, req).Response, req.Key)
	}
}
