package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// A rig is an engine under test. Its methods fail the test when the engine does not answer as they say.
type rig struct {
	testing.TB
	*idem.Engine
}

func newRig(tb testing.TB, cfg idem.Config) rig {
	tb.Helper()
	e, err := idem.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, e.Close()) })
	return rig{tb, e}
}

// bubble runs test in a bubble of [synctest]: time stands still until all sleep, and moves to the nanosecond.
func bubble(t *testing.T, cfg idem.Config, test func(r rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newRig(t, cfg)) })
}

// begin and the methods below are called a million times, so they look before they ask require.
func (r rig) begin(req idem.Request) idem.Outcome {
	out, err := r.Begin(r.Context(), req)
	if err != nil {
		r.Helper()
		require.NoError(r, err)
	}
	return out
}

// state is what a caller with the zero fingerprint finds, who does not wait.
func (r rig) state(key string) idem.State {
	return r.begin(idem.Request{Key: key}).State
}

// fresh begins key, which must be free, with a lease; zero is the engine's.
func (r rig) fresh(key string, lease time.Duration) idem.Claim {
	out := r.begin(idem.Request{Key: key, Lease: lease})
	if out.State != idem.Fresh {
		r.Helper()
		require.Equal(r, idem.Fresh, out.State, "begin %q", key)
	}
	return out.Claim
}

// complete ends c, which must be current, with a body.
func (r rig) complete(c idem.Claim, body string) {
	r.Helper()
	require.NoError(r, r.Complete(r.Context(), c, idem.Response{Status: 201, Body: []byte(body)}))
}

// done makes a record of body that lasts for ttl.
func (r rig) done(key, body string, ttl time.Duration) idem.Claim {
	c := r.fresh(key, 0)
	if err := r.Complete(r.Context(), c, idem.Response{Body: []byte(body), TTL: ttl}); err != nil {
		r.Helper()
		require.NoError(r, err)
	}
	return c
}

func (r rig) replays(key, body string) {
	out := r.begin(idem.Request{Key: key})
	if out.State != idem.Replay || string(out.Response.Body) != body {
		r.Helper()
		require.Equal(r, idem.Replay, out.State, "begin %q", key)
		require.Equal(r, body, string(out.Response.Body), "begin %q", key)
	}
}

func (r rig) forget(key string, want bool) {
	r.Helper()
	found, err := r.Forget(r.Context(), "", key)
	require.NoError(r, err)
	require.Equal(r, want, found, "forget %q", key)
}

// lost checks that c moves nothing any more.
func (r rig) lost(c idem.Claim) {
	r.Helper()
	ctx := r.Context()
	require.ErrorIs(r, r.Complete(ctx, c, idem.Response{Body: []byte("late")}), idem.ErrClaimLost)
	require.ErrorIs(r, r.Extend(ctx, c, time.Hour), idem.ErrClaimLost)
	require.ErrorIs(r, r.Abandon(ctx, c), idem.ErrClaimLost)
}

func TestBegin(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		req := idem.Request{Scope: "s", Key: "k", Fingerprint: idem.Fingerprint{1}}
		first := r.begin(req)
		require.Equal(r, idem.Fresh, first.State)
		require.Equal(r, 30*time.Second, first.Remaining, "a heartbeat wants to know the lease")
		require.Equal(r, []any{"s", "k", idem.Fingerprint{1}},
			[]any{first.Claim.Scope, first.Claim.Key, first.Claim.Fingerprint})

		time.Sleep(10 * time.Second)
		require.Equal(r, idem.Outcome{State: idem.InProgress, Remaining: 20 * time.Second}, r.begin(req))

		at := time.Now()
		r.complete(first.Claim, "body")
		time.Sleep(time.Hour)
		again := r.begin(req)
		require.True(r, again.Response.StoredAt.Equal(at))
		again.Response.StoredAt = time.Time{}
		require.Equal(r, idem.Outcome{
			State: idem.Replay, Response: idem.Response{Status: 201, Body: []byte("body")},
		}, again)
	})
}

func TestReplayIsByteForByte(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	large := make([]byte, 100_000) // a slab of its own
	copy(large[50_000:], every)
	for name, resp := range map[string]idem.Response{
		"nothing":              {},
		"an empty body":        {Status: 204, Body: []byte{}},
		"a falsy body":         {Status: 200, Body: []byte("0")},
		"null":                 {Status: 200, Body: []byte("null")},
		"all bytes":            {Status: 200, Header: every, Body: every},
		"a header alone":       {Status: 303, Header: []byte("Location: /x\r\n")},
		"a large body":         {Status: 200, Header: every, Body: large},
		"a failure":            {Status: 402, Body: []byte("declined"), Failed: true},
		"a cut body":           {Status: 200, Header: every, Truncated: true},
		"both":                 {Failed: true, Truncated: true},
		"the largest status":   {Status: math.MaxInt32},
		"the smallest status":  {Status: math.MinInt32},
		"a size class's limit": {Body: every[:16*16-64-1]},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, idem.Config{}, func(r rig) {
				require.NoError(r, r.Complete(r.Context(), r.fresh("k", 0), resp))
				for _, buf := range [][]byte{nil, {}, make([]byte, 10), make([]byte, 0, 200_000)} {
					out := r.begin(idem.Request{Key: "k", Buf: buf})
					require.Equal(r, idem.Replay, out.State)
					sameResponse(r, resp, out.Response)
				}
				rec, found, err := r.Lookup(r.Context(), "", "k")
				require.NoError(r, err)
				require.True(r, found)
				sameResponse(r, resp, rec.Response)
			})
		})
	}
}

func sameResponse(tb testing.TB, want, got idem.Response) {
	tb.Helper()
	require.Equal(tb, string(want.Header), string(got.Header))
	require.Equal(tb, string(want.Body), string(got.Body))
	require.Equal(tb, []any{want.Status, want.Failed, want.Truncated}, []any{got.Status, got.Failed, got.Truncated})
	require.Zero(tb, got.TTL)
	require.True(tb, got.StoredAt.Equal(time.Now()))
}

func TestBytesBelongToWhomTheyAreGiven(t *testing.T) {
	for _, size := range []int{100, 100_000} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			bubble(t, idem.Config{}, func(r rig) {
				body := make([]byte, size)
				require.NoError(r, r.Complete(r.Context(), r.fresh("k", 0), idem.Response{Header: []byte("h"), Body: body}))
				body[0] = 'x' // the caller goes on using what it gave
				for range 3 { // and does with what it got as it likes
					resp := r.begin(idem.Request{Key: "k"}).Response
					require.Equal(r, byte(0), resp.Body[0])
					resp.Body[0] = 'y'
					require.Equal(r, "hz", string(append(resp.Header, 'z')))
					require.Equal(r, byte('y'), resp.Body[0], "appending to the header must not write into the body")
					rec, _, _ := r.Lookup(r.Context(), "", "k")
					rec.Response.Body[0] = 'y'
					for rec := range r.All() {
						rec.Response.Body[0] = 'y'
					}
				}
				buf := make([]byte, 0, size+1)
				resp := r.begin(idem.Request{Key: "k", Buf: buf}).Response
				require.Same(r, &buf[:1][0], &resp.Header[0], "a replay lies in Buf when there is room")
				require.Same(r, &buf[:2][1], &resp.Body[0])
			})
		})
	}
}

func TestKeysAreBytes(t *testing.T) {
	// Each of these was, in some store, the same key as another one of them.
	names := [][2]string{
		{"", "ab"}, {"a", "b"}, {"ab", "a"}, {"a", "ba"}, {"aa", "b"}, {"", "a"}, {"b", "a"},
		{"", "Ab"}, {"", "ab "}, {"", " ab"}, {"", "ab\x00"}, {"ab", "\x00"}, {"ab\x00", "\x00"},
		{"", "\x00"}, {"\x00", "\x00"}, {"", "\xff"}, {"", "\xfe"}, {"", "\xff\xfe"}, {"", "\xef\xbf\xbd"},
		{"", "k\u00e9"}, {"", "ke\u0301"}, {"", "\u202e"}, {"a:b", "c"}, {"a", "b:c"}, {"a/b", "c"}, {"a", "b/c"},
	}
	bubble(t, idem.Config{Shards: 1}, func(r rig) {
		for i, n := range names {
			out := r.begin(idem.Request{Scope: n[0], Key: n[1]})
			require.Equal(r, idem.Fresh, out.State, "%q", n)
			r.complete(out.Claim, fmt.Sprint(i))
		}
		seen := map[[2]string]string{}
		for rec := range r.All() {
			seen[[2]string{rec.Scope, rec.Key}] = string(rec.Response.Body)
		}
		require.Len(r, seen, len(names))
		for i, n := range names {
			require.Equal(r, fmt.Sprint(i), seen[n])
			require.Equal(r, fmt.Sprint(i), string(r.begin(idem.Request{Scope: n[0], Key: n[1]}).Response.Body), "%q", n)
		}
	})
}

func TestFingerprintIsComparedFirst(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		other := idem.Request{Key: "k", Fingerprint: idem.Fingerprint{15: 1}, Wait: true}
		mismatch := func(when string) {
			require.Equal(r, idem.Outcome{State: idem.Mismatch}, r.begin(other), when)
		}
		c := r.fresh("k", time.Second)
		mismatch("in progress, and waiting cannot help")
		time.Sleep(time.Second)
		mismatch("unknown")
		r.complete(c, "body")
		mismatch("done")
		require.EqualValues(r, 3, r.Stats().Mismatched)
		time.Sleep(24 * time.Hour)
		require.Equal(r, idem.Fresh, r.begin(other).State, "what is over has no fingerprint")
	})
}

func TestContext(t *testing.T) {
	cause := errors.New("the client left")
	done, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	late, cancelLate := context.WithTimeout(t.Context(), -1)
	defer cancelLate()

	t.Run("a nil context is an error", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		c := r.fresh("k", 0)
		var none context.Context
		for name, err := range r.everyMethod(none, c) {
			require.ErrorContains(t, err, "nil context", name)
		}
		require.Equal(t, idem.InProgress, r.state("k"), "nothing was changed")
	})
	t.Run("that is done claims nothing", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		_, err := r.Begin(done, idem.Request{Key: "k", Wait: true})
		require.Equal(t, cause, err)
		_, err = r.Begin(late, idem.Request{Key: "k"})
		require.Equal(t, context.DeadlineExceeded, err)
		require.Zero(t, r.Len())
		_, _, err = r.Lookup(done, "", "k")
		require.Equal(t, cause, err)
	})
	t.Run("that is done does not stop who finishes", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		c := r.fresh("k", 0)
		require.NoError(t, r.Extend(done, c, 0))
		require.NoError(t, r.Complete(done, c, idem.Response{Body: []byte("b")}))
		r.replays("k", "b")
		require.NoError(t, r.Abandon(done, r.fresh("l", 0)))
		require.Equal(t, idem.Fresh, r.state("l"))
	})
}

// everyMethod calls all methods that take a context, and returns their errors.
func (r rig) everyMethod(ctx context.Context, c idem.Claim) map[string]error {
	errs := map[string]error{
		"Complete": r.Complete(ctx, c, idem.Response{}),
		"Abandon":  r.Abandon(ctx, c),
		"Extend":   r.Extend(ctx, c, 0),
		"Resolve":  r.Resolve(ctx, c.Scope, c.Key, idem.Response{}),
	}
	_, errs["Begin"] = r.Begin(ctx, idem.Request{Scope: c.Scope, Key: c.Key, Wait: true})
	_, _, errs["Lookup"] = r.Lookup(ctx, c.Scope, c.Key)
	_, errs["Forget"] = r.Forget(ctx, c.Scope, c.Key)
	return errs
}

func TestLookup(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold, TTL: time.Hour}, func(r rig) {
		look := func() idem.Record {
			rec, found, err := r.Lookup(r.Context(), "s", "k")
			require.NoError(r, err)
			var want []idem.Record
			if found {
				want = append(want, rec)
			}
			require.Equal(r, want, slices.Collect(r.All()), "All and Lookup tell the same")
			return rec
		}
		require.Zero(r, look())
		start := time.Now()
		c := r.begin(idem.Request{Scope: "s", Key: "k", Fingerprint: idem.Fingerprint{1}, Lease: time.Minute}).Claim
		want := idem.Record{
			Scope: "s", Key: "k", State: idem.InProgress, Token: c.Token, Fingerprint: idem.Fingerprint{1},
			Since: start, Remaining: time.Minute,
		}
		require.Equal(r, want, look())
		time.Sleep(time.Minute)
		want.State, want.Remaining = idem.Unknown, time.Hour
		require.Equal(r, want, look())
		r.complete(c, "b")
		time.Sleep(time.Minute)
		want.State, want.Since, want.Remaining = idem.Replay, start.Add(time.Minute), 59*time.Minute
		want.Response = idem.Response{Status: 201, Body: []byte("b"), StoredAt: want.Since}
		require.Equal(r, want, look())
		require.Zero(r, r.Stats().Replayed, "nobody began")
		time.Sleep(59 * time.Minute)
		require.Zero(r, look())
	})
}

func TestRecordCanBeMarshalled(t *testing.T) {
	r := newRig(t, idem.Config{})
	r.complete(r.fresh("k", 0), "b")
	rec, _, err := r.Lookup(t.Context(), "", "k")
	require.NoError(t, err)
	text, err := json.Marshal(rec)
	require.NoError(t, err)
	var back idem.Record
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, rec.Fingerprint, back.Fingerprint)
	require.Equal(t, rec.Response.Body, back.Response.Body)
	require.True(t, rec.Since.Equal(back.Since))
}
