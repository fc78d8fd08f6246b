package verify_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// late is how long after the end of a lease a waiter may still sleep: a tick of the wheel and the
	// pause between two rounds of the sweeper are about a millisecond each. Whoever looks at the key
	// itself sees the end at once.
	late = 5 * time.Millisecond

	perKey, inAll = 3, 4 // the caps on waiters

	most = 1 << 12 // bytes of a response that are kept

	// uptime is how long an engine lives at most. It counts the microseconds of StoredAt and Since in
	// 48 bits, which are full after 8.9 years.
	uptime = 8 * 365 * 24 * time.Hour
)

// A machine makes random calls on an engine, in a bubble of fake time, and compares every answer, every
// record and the time of every wake-up with the oracle's.
type machine struct {
	oracle
	engine  *idem.Engine
	start   time.Time
	claims  []idem.Claim // all that were granted
	waiting []*waiter    // in the order in which they came
}

func TestEngineStateMachine(t *testing.T) {
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		t.Run(nameOf(policy), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				rapid.SyncTest(t, func(t *rapid.T) { runMachine(t, policy) })
			})
		})
	}
}

func runMachine(t *rapid.T, policy idem.LeasePolicy) {
	m := &machine{start: time.Now(), oracle: oracle{policy: policy, lease: 30 * time.Second, ttl: 24 * time.Hour, cells: map[string]*cell{}}}
	var err error
	m.engine, err = idem.New(idem.Config{
		Shards: rapid.SampledFrom([]int{1, 4}).Draw(t, "shards"), OnLeaseExpiry: policy,
		MaxWaiters: inAll, MaxWaitersPerKey: perKey, MaxResponseBytes: most,
	})
	require.NoError(t, err)
	defer m.close(t)
	t.Repeat(map[string]func(*rapid.T){
		"":         m.check,
		"begin":    m.begin,
		"wait":     m.wait,
		"cancel":   m.cancel,
		"complete": m.complete,
		"abandon":  m.abandon,
		"extend":   m.extend,
		"forget":   m.forget,
		"resolve":  m.resolve,
		"advance":  m.advance,
		"outlive":  m.outlive,
	})
}

// close ends the engine with callers still waiting.
func (m *machine) close(t *rapid.T) {
	require.NoError(t, m.engine.Close())
	synctest.Wait()
	for _, w := range m.waiting {
		a := <-w.answer
		require.ErrorIs(t, a.err, idem.ErrClosed)
		w.cancel()
	}
	_, err := m.engine.Begin(context.Background(), idem.Request{Key: "k"})
	require.ErrorIs(t, err, idem.ErrClosed)
}

func keys() []string { return []string{"a", "b"} }

func drawKey(t *rapid.T) string { return rapid.SampledFrom(keys()).Draw(t, "key") }

// drawLife draws a lease or a TTL: the edges of a tick and of the wheel's levels, and plain ones.
func drawLife(t *rapid.T, label string) time.Duration {
	return rapid.SampledFrom([]time.Duration{
		0, 1, time.Microsecond, 1<<20 - 1, 1 << 20, 1<<20 + 1, 10 * time.Millisecond, 1<<26 - 1, 1 << 26,
		time.Second, 9 * time.Second, 1 << 34, time.Minute, time.Hour, 400 * 24 * time.Hour,
	}).Draw(t, label)
}

func drawResponse(t *rapid.T) idem.Response {
	status := rapid.IntRange(-1, 599).Draw(t, "status")
	return idem.Response{
		Status: status,
		Header: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "header"),
		Body:   bytes.Repeat([]byte{byte(status)}, rapid.IntRange(0, most+20).Draw(t, "body")),
		Failed: rapid.Bool().Draw(t, "failed"),
		TTL:    drawLife(t, "ttl"),
	}
}

// drawClaim draws one of all that were granted, half of the time as if it had been sent by wire.
func (m *machine) drawClaim(t *rapid.T) (idem.Claim, bool) {
	if len(m.claims) == 0 {
		return idem.Claim{}, false
	}
	// The young ones are the interesting ones.
	back := min(rapid.IntRange(1, 8).Draw(t, "back"), len(m.claims))
	c := m.claims[len(m.claims)-back]
	if rapid.Bool().Draw(t, "by wire") {
		c = idem.Claim{Scope: c.Scope, Key: c.Key, Token: c.Token, Fingerprint: c.Fingerprint}
	}
	return c, true
}

// drawRequest draws a request for key, mostly the one that the others send too.
func drawRequest(t *rapid.T, key string) idem.Request {
	return idem.Request{
		Scope: "s", Key: key, Lease: drawLife(t, "lease"),
		Fingerprint: rapid.SampledFrom([]idem.Fingerprint{{1}, {1}, {1}, {1}, {1}, {2}}).Draw(t, "fingerprint"),
	}
}

// begin begins without waiting.
func (m *machine) begin(t *rapid.T) { m.beginKey(t, drawKey(t), 1) }

func (m *machine) beginKey(t *rapid.T, key string, times int) {
	req := drawRequest(t, key)
	for range times {
		out, err := m.engine.Begin(context.Background(), req)
		m.answered(t, req, out, err, time.Now())
	}
}

// answered checks what a Begin that did not wait, or waits no more, was told at now.
func (m *machine) answered(t *rapid.T, req idem.Request, out idem.Outcome, err error, now time.Time) {
	require.NoError(t, err)
	c := m.at(req.Key, now)
	want := c.is
	switch {
	case want == absent:
		require.Equal(t, idem.Fresh, out.State)
		require.Greater(t, out.Claim.Token, m.last)
		require.Equal(t, cmp.Or(req.Lease, m.lease), out.Remaining)
		require.Equal(t, req.Fingerprint, out.Claim.Fingerprint)
		m.claims = append(m.claims, out.Claim)
		m.claim(out.Claim, req.Lease, now)
		return
	case c.fingerprint != req.Fingerprint:
		want = idem.Mismatch
	}
	require.Equal(t, want, out.State)
	require.Zero(t, out.Claim)
	if want == idem.InProgress {
		require.Equal(t, c.ends.Sub(now), out.Remaining)
	}
	if want == idem.Replay {
		requireResponse(t, c, out.Response)
	}
}

func requireResponse(t *rapid.T, c *cell, got idem.Response) {
	require.WithinDuration(t, c.since, got.StoredAt, time.Microsecond)
	got.StoredAt = time.Time{}
	want := c.response
	require.True(t, bytes.Equal(want.Header, got.Header) && bytes.Equal(want.Body, got.Body))
	want.Header, want.Body, got.Header, got.Body = nil, nil, nil, nil
	require.Equal(t, want, got)
}

// told checks err against what the owner may be told, and returns whether it was accepted.
func told(t *rapid.T, may verdict, err error) bool {
	if err != nil && !errors.Is(err, idem.ErrTruncated) {
		require.ErrorIs(t, err, idem.ErrClaimLost)
		require.True(t, may.lost)
		return false
	}
	require.True(t, may.accepted)
	return true
}

func (m *machine) complete(t *rapid.T) {
	claim, ok := m.drawClaim(t)
	if !ok {
		return
	}
	now, resp := time.Now(), drawResponse(t)
	c := m.at(claim.Key, now)
	cut := isTooLarge(resp)
	if c.is == idem.Replay && c.token == claim.Token {
		cut = c.response.Truncated // what was recorded stays
	}
	err := m.engine.Complete(context.Background(), claim, resp)
	requireTruncated(t, cut, err)
	if told(t, judge(c, claim), err) && c.is != idem.Replay {
		m.finish(claim.Key, claim.Token, claim.Fingerprint, resp, now)
	}
	m.settle(t)
}

// requireTruncated checks that err says so if what is recorded was cut, unless the claim was refused.
func requireTruncated(t *rapid.T, cut bool, err error) {
	if errors.Is(err, idem.ErrClaimLost) {
		return
	}
	require.Equal(t, cut, errors.Is(err, idem.ErrTruncated), "%v", err)
}

func (m *machine) abandon(t *rapid.T) {
	claim, ok := m.drawClaim(t)
	if !ok {
		return
	}
	c := m.at(claim.Key, time.Now())
	err := m.engine.Abandon(context.Background(), claim)
	if told(t, judge(c, claim), err) && c.is != idem.Replay {
		c.is = absent
	}
	m.settle(t)
}

func (m *machine) extend(t *rapid.T) {
	claim, ok := m.drawClaim(t)
	if !ok {
		return
	}
	now, lease := time.Now(), drawLife(t, "lease")
	c := m.at(claim.Key, now)
	may := judge(c, claim)
	if c.is == idem.Replay {
		may = verdict{lost: true}
	}
	if told(t, may, m.engine.Extend(context.Background(), claim, lease)) {
		if c.is == absent {
			c.since = time.Time{} // the record of the lapsed claim may be there still, or be a new one
		}
		c.is, c.token, c.fingerprint = idem.InProgress, claim.Token, claim.Fingerprint
		c.ends = now.Add(cmp.Or(lease, m.lease))
	}
	m.settle(t)
}

// forget forgets a key, and perhaps once more before the waiter to whom the claim passed has noticed.
func (m *machine) forget(t *rapid.T) {
	key := drawKey(t)
	c, waiters := m.at(key, time.Now()), m.waitersOf(key)
	times := 1
	if len(waiters) == 1 {
		times = rapid.IntRange(1, 2).Draw(t, "times")
	}
	for range times {
		found, err := m.engine.Forget(context.Background(), "s", key)
		require.NoError(t, err)
		require.Equal(t, c.is != absent, found)
	}
	c.is = absent
	m.settle(t)
	if times == 2 {
		// The waiter may have been so quick that the second took the claim from it, not from its owner.
		if _, found, _ := m.engine.Lookup(context.Background(), "s", key); !found {
			m.cells[key].is = absent
		}
	}
}

func (m *machine) resolve(t *rapid.T) {
	key, now, resp := drawKey(t), time.Now(), drawResponse(t)
	c := m.at(key, now)
	err := m.engine.Resolve(context.Background(), "s", key, resp)
	if c.is != idem.InProgress && c.is != idem.Unknown {
		require.ErrorIs(t, err, idem.ErrNoClaim)
		return
	}
	requireTruncated(t, isTooLarge(resp), err)
	m.finish(key, 0, c.fingerprint, resp, now)
	m.settle(t)
}

// advance lets a while pass.
func (m *machine) advance(t *rapid.T) { m.sleep(t, drawLife(t, "for")) }

// outlive lets time pass to the end of a record's life, or to just before or after it, and begins. On
// the way the key may be begun so often, and so near the end, that the engine takes its short cuts.
func (m *machine) outlive(t *rapid.T) {
	key := drawKey(t)
	c := m.at(key, time.Now())
	if c.is == absent {
		return
	}
	if rapid.Bool().Draw(t, "hurry") {
		m.sleep(t, max(0, time.Until(c.ends)-10*time.Millisecond))
		m.beginKey(t, key, 70)
		m.sleep(t, time.Millisecond)
		if c = m.at(key, time.Now()); c.is == absent {
			return
		}
	}
	m.sleep(t, time.Until(c.ends)+rapid.SampledFrom([]time.Duration{-1, 0, 1}).Draw(t, "off by"))
	m.beginKey(t, key, 1)
}

// sleep lets d pass, and goes on until every waiter whose time has come is awake.
func (m *machine) sleep(t *rapid.T, d time.Duration) {
	if time.Since(m.start)+d > uptime {
		return
	}
	time.Sleep(d)
	m.settle(t)
	overdue := func(w *waiter) bool { return !time.Now().Before(m.cells[w.req.Key].ends) }
	for slices.ContainsFunc(m.waiting, overdue) {
		time.Sleep(time.Millisecond)
		m.settle(t) // which gives up when it takes too long
	}
}

// check compares every record with the oracle's, one by one and in a listing.
func (m *machine) check(t *rapid.T) {
	listed := map[string]idem.Record{}
	for r := range m.engine.All() {
		require.NotContains(t, listed, r.Key)
		listed[r.Key] = r
	}
	for _, key := range keys() {
		c := m.at(key, time.Now())
		r, found, err := m.engine.Lookup(context.Background(), "s", key)
		require.NoError(t, err)
		require.Equal(t, c.is != absent, found)
		if !found {
			require.NotContains(t, listed, key)
			continue
		}
		m.requireRecord(t, key, c, r)
		m.requireRecord(t, key, c, listed[key])
	}
	require.Equal(t, len(m.waiting), m.engine.Stats().Waiting)
}

func (m *machine) requireRecord(t *rapid.T, key string, c *cell, r idem.Record) {
	require.Equal(t, [2]string{"s", key}, [2]string{r.Scope, r.Key})
	require.Equal(t, c.is, r.State)
	require.Equal(t, c.fingerprint, r.Fingerprint)
	require.Equal(t, time.Until(c.ends), r.Remaining)
	if !c.since.IsZero() {
		require.WithinDuration(t, c.since, r.Since, time.Microsecond)
	}
	if c.token == 0 { // resolved under a token that is new
		require.Greater(t, r.Token, m.last)
		c.token, m.last = r.Token, r.Token
	}
	require.Equal(t, c.token, r.Token)
	if c.is == idem.Replay {
		requireResponse(t, c, r.Response)
	}
}
