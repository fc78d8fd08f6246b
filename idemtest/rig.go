package idemtest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// short is a lease or TTL that a row lets run out. Rows never rely on its being long enough.
	short = 40 * time.Millisecond

	// long is one that outlives every row.
	long = time.Hour

	// calm is how long a row looks on to see that nothing happens, and how long it gives callers to
	// begin to wait. Were it too short, faults could be missed but none be made up.
	calm = 40 * time.Millisecond

	// patience is how long a row waits for what must happen. It includes what a store on a server may
	// need to look again after a lost hint.
	patience = 20 * time.Second

	// racers is how many callers a race has.
	racers = 256
)

// errTooLong is why a call fails that should have returned.
var errTooLong = errors.New("idemtest: the call took too long")

// A rig is what a row works with: a store and the means to use and time it.
type rig struct {
	testing.TB
	maker Maker
	row   Row
	store idem.Store
	scope string // random, so that rows do not meet on a shared server
	calls sync.WaitGroup
}

func newRig(tb testing.TB, m Maker, row Row) *rig {
	tb.Helper()
	r := &rig{TB: tb, maker: m, row: row, scope: "idemtest " + rand.Text()[:12]}
	r.store = r.open()
	tb.Cleanup(r.wait)
	return r
}

// open makes a store with the row's settings.
func (r *rig) open() idem.Store {
	r.Helper()
	cfg := r.row.config
	cfg.Lease, cfg.TTL = r.stretch(cfg.Lease), r.stretch(cfg.TTL)
	return r.maker.New(r.TB, cfg)
}

// wait waits for the calls that still run. The context they have is done by then.
func (r *rig) wait() {
	ended := make(chan struct{})
	go func() {
		r.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(r.stretch(patience)):
		r.Errorf("a call did not return although its context is done")
	}
}

// stretch applies the maker's slack. Only what is short is stretched: an hour is enough for anybody.
func (r *rig) stretch(d time.Duration) time.Duration {
	if r.maker.Slack == 0 || d >= long {
		return d
	}
	return time.Duration(float64(d) * r.maker.Slack)
}

func (r *rig) short() time.Duration { return r.stretch(short) }

// most is the longest that a lease or TTL of d may last by the store's clock.
func (r *rig) most(d time.Duration) time.Duration { return d + r.maker.Resolution }

func (r *rig) rounds() int {
	if r.maker.Rounds == 0 {
		return 10
	}
	return r.maker.Rounds
}

// holds tells whether the row runs under the policy Hold.
func (r *rig) holds() bool { return r.row.Policy == idem.Hold }

// afterLease is what a key is whose lease has run out.
func (r *rig) afterLease() idem.State {
	if r.holds() {
		return idem.Unknown
	}
	return idem.Fresh
}

// inspector returns the store as what rows that need [Inspector] ask for.
func (r *rig) inspector() idem.Inspector {
	r.Helper()
	i, ok := r.store.(idem.Inspector)
	require.True(r, ok, "%T is no idem.Inspector; set Maker.Unsupported if it need not be one", r.store)
	return i
}

// inspects tells whether a row that does not need [Inspector] may still use it.
func (r *rig) inspects() bool { return r.maker.Unsupported&Inspector == 0 }

// request asks for key, under the fingerprint of all requests that are not foreign.
func (r *rig) request(key string) idem.Request {
	return idem.Request{Scope: r.scope, Key: key, Fingerprint: idem.FingerprintOf([]byte("ours")), Lease: long}
}

// foreign is the same request for another operation.
func foreign(req idem.Request) idem.Request {
	req.Fingerprint = idem.FingerprintOf([]byte("theirs"))
	return req
}

// brief is the same request with a lease that runs out soon.
func (r *rig) brief(req idem.Request) idem.Request {
	req.Lease = r.short()
	return req
}

// waiting is the same request with Wait.
func waiting(req idem.Request) idem.Request {
	req.Wait = true
	return req
}

// soon is the context of a call that must not block for longer than the row has patience.
func (r *rig) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.Context(), r.stretch(patience), errTooLong)
}

// begin calls Begin, which must not fail, nor block for longer than the row has patience.
func (r *rig) begin(req idem.Request) idem.Outcome {
	r.Helper()
	ctx, cancel := r.soon()
	defer cancel()
	out, err := r.store.Begin(ctx, req)
	require.NoError(r, err, "Begin %q", req.Key)
	return out
}

// expect calls Begin and wants the state.
func (r *rig) expect(want idem.State, req idem.Request) idem.Outcome {
	r.Helper()
	out := r.begin(req)
	require.Equal(r, want.String(), out.State.String(), "state that Begin %q found", req.Key)
	return out
}

// runsLong wants the key in progress, with a lease that was long a moment ago.
func (r *rig) runsLong(req idem.Request) {
	r.Helper()
	left := r.expect(idem.InProgress, req).Remaining
	require.Greater(r, left, long/2)
	require.LessOrEqual(r, left, r.most(long))
}

// fresh claims the key of req.
func (r *rig) fresh(req idem.Request) idem.Claim {
	r.Helper()
	return r.expect(idem.Fresh, req).Claim
}

// replays wants body replayed.
func (r *rig) replays(body string, req idem.Request) {
	r.Helper()
	require.Equal(r, body, string(r.expect(idem.Replay, req).Response.Body), "body that Begin %q replayed", req.Key)
}

func (r *rig) complete(c idem.Claim, resp idem.Response) {
	r.Helper()
	ctx, cancel := r.soon()
	defer cancel()
	require.NoError(r, r.store.Complete(ctx, c, resp), "Complete %q", c.Key)
}

func (r *rig) abandon(c idem.Claim) {
	r.Helper()
	ctx, cancel := r.soon()
	defer cancel()
	require.NoError(r, r.store.Abandon(ctx, c), "Abandon %q", c.Key)
}

func (r *rig) extend(c idem.Claim, lease time.Duration) {
	r.Helper()
	ctx, cancel := r.soon()
	defer cancel()
	require.NoError(r, r.store.Extend(ctx, c, lease), "Extend %q", c.Key)
}

func (r *rig) forget(key string) {
	r.Helper()
	ctx, cancel := r.soon()
	defer cancel()
	found, err := r.inspector().Forget(ctx, r.scope, key)
	require.NoError(r, err, "Forget %q", key)
	require.True(r, found, "Forget %q found something", key)
}

// done claims the key and completes it.
func (r *rig) done(req idem.Request, resp idem.Response) idem.Claim {
	r.Helper()
	c := r.fresh(req)
	r.complete(c, resp)
	return c
}

// lapsed claims the key and lets the lease run out.
func (r *rig) lapsed(req idem.Request) idem.Claim {
	r.Helper()
	var c idem.Claim
	granted := timed(func() { c = r.fresh(r.brief(req)) })
	r.sleepPast(granted, r.short())
	return c
}

// deprived claims the key twice and returns the claim that was lost and the current one.
func (r *rig) deprived(req idem.Request) (lost, current idem.Claim) {
	r.Helper()
	if r.holds() {
		lost = r.fresh(req)
		r.abandon(lost)
	} else {
		lost = r.lapsed(req)
	}
	return lost, r.fresh(req)
}

// lost wants ErrClaimLost.
func (r *rig) lost(err error, what string) {
	r.Helper()
	require.ErrorIs(r, err, idem.ErrClaimLost, what)
}

// text is a response with a body.
func text(body string) idem.Response { return idem.Response{Status: 200, Body: []byte(body)} }

// lasting is the same response with a TTL.
func lasting(resp idem.Response, ttl time.Duration) idem.Response {
	resp.TTL = ttl
	return resp
}
