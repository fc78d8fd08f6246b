package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// A distant store is an engine as another machine would have it: it counts its calls, can fail and be slow, and its
// clock shows another time.
type distant struct {
	*idem.Engine
	begins, lookups atomic.Int64
	ahead           time.Duration                                  // of its clock
	before, after   func(ctx context.Context, method string) error // called when not nil
}

func (d *distant) call(ctx context.Context, method string, f func() error) error {
	if d.before != nil {
		if err := d.before(ctx, method); err != nil {
			return err
		}
	}
	err := f()
	if d.after != nil && err == nil {
		err = d.after(ctx, method)
	}
	return err
}

func (d *distant) Begin(ctx context.Context, req idem.Request) (out idem.Outcome, err error) {
	d.begins.Add(1)
	err = d.call(ctx, "Begin", func() error {
		out, err = d.Engine.Begin(ctx, req)
		if out.State == idem.Replay {
			out.Response.StoredAt = out.Response.StoredAt.Add(d.ahead)
		}
		return err
	})
	if err != nil {
		return idem.Outcome{}, err
	}
	return out, nil
}

func (d *distant) Lookup(ctx context.Context, scope, key string) (rec idem.Record, found bool, err error) {
	d.lookups.Add(1)
	err = d.call(ctx, "Lookup", func() error {
		rec, found, err = d.Engine.Lookup(ctx, scope, key)
		rec.Since, rec.Response.StoredAt = rec.Since.Add(d.ahead), rec.Response.StoredAt.Add(d.ahead)
		return err
	})
	return rec, found, err
}

func (d *distant) Forget(ctx context.Context, scope, key string) (found bool, err error) {
	err = d.call(ctx, "Forget", func() error {
		found, err = d.Engine.Forget(ctx, scope, key)
		return err
	})
	return found, err
}

// calls returns how many Begins and Lookups there were since the last call.
func (d *distant) calls() [2]int64 { return [2]int64{d.begins.Swap(0), d.lookups.Swap(0)} }

var (
	silence  = [2]int64{0, 0} // no round trip
	oneBegin = [2]int64{1, 0}
	fetched  = [2]int64{1, 1} // the first replay
)

// A tier is a tiered store and what it is made of. Its rig is for calls through it.
type tier struct {
	tieredRig
	local  *idem.Engine
	remote *distant
}

// tieredRig has the helpers that tests of the engine have, for the tiered store.
type tieredRig struct {
	*testing.T
	*idem.TieredStore
}

func newTier(t *testing.T, cfg idem.Config) tier {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = time.Minute
	}
	local, remote := openEngine(t, cfg), &distant{Engine: openEngine(t, idem.Config{})}
	return tier{tieredRig{t, idem.Tiered(local, remote)}, local, remote}
}

// neighbour is the tiered store of another process with the same remote.
func (r tier) neighbour() tier {
	local := openEngine(r.T, idem.Config{TTL: time.Minute})
	return tier{tieredRig{r.T, idem.Tiered(local, r.remote)}, local, r.remote}
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, name string, test func(r tier)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(newTier(t, idem.Config{})) })
	})
}

func (r tieredRig) begin(req idem.Request) idem.Outcome {
	r.Helper()
	out, err := r.Begin(r.Context(), req)
	require.NoError(r, err)
	return out
}

func (r tieredRig) expect(want idem.State, req idem.Request) idem.Outcome {
	r.Helper()
	out := r.begin(req)
	require.Equal(r, want.String(), out.State.String())
	return out
}

func (r tieredRig) done(req idem.Request, resp idem.Response) {
	r.Helper()
	out := r.expect(idem.Fresh, req)
	require.NoError(r, r.Complete(r.Context(), out.Claim, resp))
}

func (r tieredRig) replays(body string, req idem.Request) {
	r.Helper()
	require.Equal(r, body, string(r.expect(idem.Replay, req).Response.Body))
}

// known has a key done and replayed once, so that it is known here.
func (r tier) known(body string, req idem.Request) {
	r.Helper()
	r.done(req, idem.Response{Body: []byte(body)})
	r.replays(body, req)
	r.remote.calls()
}

var (
	payment      = idem.Request{Scope: "shop", Key: "payment", Fingerprint: idem.FingerprintOf([]byte("1"))}
	otherPayment = idem.Request{Scope: "shop", Key: "payment", Fingerprint: idem.FingerprintOf([]byte("2"))}
)

func TestTieredReplays(t *testing.T) {
	t.Run("what was replayed once without a round trip", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		r.done(payment, idem.Response{Body: []byte("paid")})
		require.Equal(t, oneBegin, r.remote.calls())
		r.replays("paid", payment)
		require.Equal(t, fetched, r.remote.calls())
		for range 100 {
			r.replays("paid", payment)
		}
		waiting := payment
		waiting.Wait = true
		r.replays("paid", waiting)
		require.Equal(t, silence, r.remote.calls())
		require.Equal(t, 101, int(r.local.Stats().Replayed))
	})
	t.Run("what another process completed", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		r.neighbour().done(payment, idem.Response{Body: []byte("paid there")})
		r.replays("paid there", payment)
		r.remote.calls()
		r.replays("paid there", payment)
		require.Equal(t, silence, r.remote.calls())
	})
	t.Run("byte for byte, and when it was stored by the remote clock", func(t *testing.T) {
		for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
			r := newTier(t, idem.Config{})
			r.remote.ahead = ahead
			for i, resp := range []idem.Response{
				{},
				{Status: 204, Header: []byte{}, Body: []byte{}},
				{Status: -1, Body: []byte("null")},
				{Header: []byte("header alone")},
				{Status: 200, Header: []byte("header"), Body: []byte("and body")},
				{Status: 500, Body: []byte("declined"), Failed: true},
				{Status: 200, Truncated: true},
				{Body: []byte(strings.Repeat("large", 10_000))},
			} {
				req := idem.Request{Key: fmt.Sprint(i)}
				r.done(req, resp)
				first := r.expect(idem.Replay, req)
				r.remote.calls()
				for _, buf := range [][]byte{nil, make([]byte, 5), make([]byte, 100_000)} {
					req.Buf = buf
					again := r.expect(idem.Replay, req)
					require.True(t, first.Response.StoredAt.Equal(again.Response.StoredAt))
					again.Response.StoredAt = first.Response.StoredAt
					require.Equal(t, first, again)
					clear(again.Response.Header) // it is the caller's, who may write over it
					clear(again.Response.Body)
				}
				require.Equal(t, silence, r.remote.calls())
				require.WithinDuration(t, time.Now().Add(ahead), first.Response.StoredAt, time.Minute)
			}
		}
	})
	t.Run("into a buffer without allocating", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		r.known("paid", payment)
		req := payment
		req.Buf = make([]byte, 100)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			if out, err := r.Begin(t.Context(), req); err != nil || out.State != idem.Replay {
				t.Fatal(out.State, err)
			}
		}))
	})
	t.Run("nothing that its caller must not ask for", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		r.known("paid", payment)
		_, err := r.Begin(nil, payment) //nolint:staticcheck // on purpose
		require.EqualError(t, err, "idem: nil context")
		cause := errors.New("hung up")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err = r.Begin(ctx, payment)
		require.ErrorIs(t, err, cause)
		req := payment
		req.Lease = -1
		_, err = r.Begin(t.Context(), req)
		require.EqualError(t, err, "idem: Request.Lease is -1ns, want zero or more")
		req = idem.Request{}
		_, err = r.Begin(t.Context(), req)
		require.ErrorIs(t, err, idem.ErrKey)
	})
	t.Run("while the remote store is down", func(t *testing.T) {
		r := newTier(t, idem.Config{})
		r.known("paid", payment)
		down := errors.New("connection refused")
		r.remote.before = func(context.Context, string) error { return down }
		r.replays("paid", payment)
		_, err := r.Begin(t.Context(), idem.Request{Key: "another"})
		require.ErrorIs(t, err, down)
	})
}

func TestTieredHoldsCompletedRecordsOnly(t *testing.T) {
	empty := func(r tier) {
		r.Helper()
		require.Zero(r, r.local.Len())
	}
	r := newTier(t, idem.Config{})
	claim := r.expect(idem.Fresh, payment).Claim
	empty(r)
	r.expect(idem.InProgress, payment)
	empty(r)
	r.expect(idem.Mismatch, otherPayment)
	empty(r)
	require.NoError(t, r.Extend(t.Context(), claim, time.Hour))
	rec, found, err := r.Lookup(t.Context(), payment.Scope, payment.Key)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, claim.Token, rec.Token)
	empty(r)
	require.NoError(t, r.Complete(t.Context(), claim, idem.Response{}))
	r.expect(idem.Mismatch, otherPayment)
	require.NoError(t, r.Abandon(t.Context(), claim))
	empty(r)
	r.expect(idem.Replay, payment)
	require.Equal(t, 1, r.local.Len())

	r.remote.before = func(context.Context, string) error { return errors.New("down") }
	_, err = r.Begin(t.Context(), idem.Request{Key: "another"})
	require.Error(t, err)
	require.Equal(t, 1, r.local.Len())
	require.Zero(t, r.local.Stats().Fresh, "the local engine grants nothing")
}

// TestTieredOverAPlainStore is about a remote store that has nothing but the four methods.
func TestTieredOverAPlainStore(t *testing.T) {
	remote := &distant{Engine: openEngine(t, idem.Config{})}
	r := tieredRig{t, idem.Tiered(openEngine(t, idem.Config{}), struct{ idem.Store }{remote})}
	r.done(payment, idem.Response{Body: []byte("paid")})
	for range 3 {
		r.replays("paid", payment)
	}
	require.Equal(t, [2]int64{4, 0}, remote.calls())
	_, _, err := r.Lookup(t.Context(), "", "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = r.Forget(t.Context(), "", "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	err = r.Resolve(t.Context(), "", "k", idem.Response{})
	require.EqualError(t, err, "idem: remote store struct { idem.Store } is no Inspector: unsupported operation")
}

func TestTieredOfNothingPanics(t *testing.T) {
	e := openEngine(t, idem.Config{})
	require.Panics(t, func() { idem.Tiered(nil, e) })
	require.Panics(t, func() { idem.Tiered(e, nil) })
}

func ExampleTiered() {
	remote, err := idem.New(idem.Config{}) // in earnest, a store that processes share
	if err != nil {
		panic(err)
	}
	defer func() { _ = remote.Close() }()
	local, err := idem.New(idem.Config{TTL: time.Minute})
	if err != nil {
		panic(err)
	}
	defer func() { _ = local.Close() }()
	store := idem.Tiered(local, remote)

	req := idem.Request{Scope: "shop", Key: "order-1"}
	for range 3 {
		resp, err := idem.Do(context.Background(), store, req, answer("paid"))
		fmt.Printf("%s %v, replayed from memory so far: %d\n", resp.Body, err, local.Stats().Replayed)
	}
	// Output:
	// paid <nil>, replayed from memory so far: 0
	// paid <nil>, replayed from memory so far: 0
	// paid <nil>, replayed from memory so far: 1
}
