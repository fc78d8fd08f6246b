package idem

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
)

type modelKey struct{ scope, key string }

// A modelRecord is what the contract says about one key. Times are in ns since the engine's start.
type modelRecord struct {
	state       State  // zero: absent
	token       uint64 // zero: not known yet
	fingerprint Fingerprint
	response    Response
	since       int64 // or sinceUnknown
	ends        int64 // of the lease or of the record's life
	lapsed      int64 // end of the lease of what is Unknown now

	queue     []*modelWaiter // who waits, in the order in which they came
	unordered bool           // some of them had to begin again: their order is anybody's guess
	owed      int            // hand-overs in this step that no waiter was seen to take yet
	taken     bool           // a waiter was seen to take the claim in this step
}

// A modelWaiter is a Begin that blocks. Its goroutine writes the last group, before it ends; the test reads
// it after synctest.Wait.
type modelWaiter struct {
	req    Request
	cancel context.CancelCauseFunc
	gone   bool  // cancelled by the test
	until  int64 // its context's deadline

	done bool
	at   int64 // when it was answered
	out  Outcome
	err  error
}

var (
	errFuzzCancel   = errors.New("cancelled by the test")
	errFuzzPatience = errors.New("out of patience")
)

// A model is the contract as a plain map under exact time. It follows the engine where the contract leaves
// two answers open, and checks that the answer is one of them.
type model struct {
	t       *testing.T
	e       *Engine
	cfg     Config
	records map[modelKey]*modelRecord
	last    uint64  // the highest token seen
	before  uint64  // what last was when the step began
	waking  bool    // in reconcile
	pool    []Claim // every claim that was granted, for good
	tally   Stats   // what Stats should have counted
}

// at returns the key's record as it is at now. A claim that lapsed under TakeOver stays, while the wheel
// may or may not have reclaimed it yet.
func (m *model) at(k modelKey, now int64) *modelRecord {
	r := m.records[k]
	if r == nil {
		r = &modelRecord{}
		m.records[k] = r
	}
	for r.state != 0 && r.ends <= now {
		switch {
		case r.state != InProgress:
			r.state = 0
			r.unordered = true // who still waits will have to begin again
		case m.cfg.OnLeaseExpiry == Hold:
			r.state, r.lapsed, r.ends = Unknown, r.ends, after(r.ends, m.cfg.TTL)
		case len(r.queue) > 0 || now <= r.ends+fuzzLate:
			return r
		default:
			r.state = 0
		}
	}
	return r
}

func (r *modelRecord) live(now int64) bool { return r.state != 0 && r.ends > now }
func (r *modelRecord) dead(now int64) bool { return r.state == InProgress && r.ends <= now }

// touch is at for an operation that settles the record: it hands a lapsed claim to the first waiter.
func (m *model) touch(k modelKey, now int64) *modelRecord {
	r := m.at(k, now)
	if r.dead(now) && len(r.queue) > 0 {
		m.free(r, now)
	}
	return r
}

// reclaim is touch for an operation that also takes away a lapsed claim that nobody waits for.
func (m *model) reclaim(k modelKey, now int64) *modelRecord {
	r := m.touch(k, now)
	if r.dead(now) {
		r.clear()
	}
	return r
}

func (r *modelRecord) clear() { *r = modelRecord{queue: r.queue, unordered: r.unordered} }

// free ends a claim: a waiter is owed it, or the record goes.
func (m *model) free(r *modelRecord, now int64) {
	if len(r.queue) == 0 {
		r.clear()
		return
	}
	// Of two hand-overs at once the first may be void; its waiter then queues again. Who waited for
	// what turned Unknown begins again as well.
	r.owed++
	r.unordered = r.unordered || r.owed > 1 || r.state == Unknown
	r.state, r.token, r.since, r.ends = InProgress, 0, now, after(now, m.cfg.Lease)
}

// began checks the answer to a Begin that did not wait.
func (m *model) began(req Request, out Outcome, err error, now int64) {
	r := m.touch(modelKey{req.Scope, req.Key}, now)
	if !r.live(now) {
		m.granted(r, req, out, err, now)
		return
	}
	require.NoError(m.t, err)
	require.Zero(m.t, out.Claim)
	want := r.state
	if r.fingerprint != req.Fingerprint {
		want = Mismatch
	}
	require.Equal(m.t, want, out.State)
	remaining := int64(0)
	switch want {
	case InProgress:
		remaining = r.ends - now
		m.tally.Duplicates++
	case Replay:
		m.sameResponse(r, out.Response)
		m.tally.Replayed++
	case Mismatch:
		m.tally.Mismatched++
	case Unknown:
		m.tally.Unknown++
	}
	require.Equal(m.t, time.Duration(remaining), out.Remaining)
}

// granted checks the answer to a Begin of a free key: a claim, or that there is no room.
func (m *model) granted(r *modelRecord, req Request, out Outcome, err error, now int64) {
	least, most := m.held(r, now)
	if errors.Is(err, ErrFull) {
		byBytes := int(m.e.bytes.Load())+maxSlab > m.cfg.MaxBytes
		require.True(m.t, byBytes || m.cfg.MaxRecords > 0 && most >= m.cfg.MaxRecords, "full with %d records", most)
		m.tally.Refused++
		r.clear()
		return
	}
	require.NoError(m.t, err)
	require.Equal(m.t, Fresh, out.State)
	require.True(m.t, m.cfg.MaxRecords == 0 || r.state != 0 || least < m.cfg.MaxRecords, "room beside %d records", least)
	c := out.Claim
	require.Equal(m.t, modelKey{req.Scope, req.Key}, modelKey{c.Scope, c.Key})
	require.Equal(m.t, req.Fingerprint, c.Fingerprint)
	m.grant(c.Token)
	require.Equal(m.t, orDefault(req.Lease, m.cfg.Lease), out.Remaining)
	m.pool = append(m.pool, c)
	m.tally.Fresh++
	r.state, r.token, r.fingerprint = InProgress, c.Token, req.Fingerprint
	r.since, r.ends = now, after(now, out.Remaining)
}

// grant checks that a token is new. A Begin that reclaims may first hand the claim of another key to one who waits for
// it, who is only heard of after the Begin.
func (m *model) grant(token uint64) {
	floor := m.last
	if m.waking {
		floor = m.before
	}
	require.Greater(m.t, token, floor, "tokens grow")
	m.last = max(m.last, token)
}

// held returns bounds for how many records the engine holds beside r: those whose time ran out go soon.
func (m *model) held(r *modelRecord, now int64) (least, most int) {
	for k := range m.records {
		other := m.at(k, now)
		switch {
		case other == r:
		case other.live(now):
			least++
			most++
		case other.ends > 0 && now <= fuzzHeld(other.since, other.ends):
			most++
		}
	}
	return least, most
}

// judge says what the holder of c may be told. Both: somebody else's claim has lapsed, and whether its
// record is still there is the wheel's business.
func (m *model) judge(c Claim, now int64) (r *modelRecord, ok, lost bool) {
	k := modelKey{c.Scope, c.Key}
	r = m.at(k, now)
	if r.state != 0 && r.token == c.Token {
		return r, true, false
	}
	r = m.touch(k, now)
	return r, r.state == 0 || r.dead(now), r.state != 0
}

// told checks err against a verdict and reports whether the claim was accepted.
func (m *model) told(err error, ok, lost bool) bool {
	if errors.Is(err, ErrClaimLost) {
		require.True(m.t, lost, "the claim is the current one")
		m.tally.Lost++
		return false
	}
	require.True(m.t, ok, "the claim is lost")
	return true
}

// finish records a response. The token is zero when it is not known.
func (m *model) finish(r *modelRecord, token uint64, fp Fingerprint, resp Response, now int64) {
	if len(resp.Header)+len(resp.Body) > m.cfg.MaxResponseBytes {
		resp.Truncated, resp.Body = true, nil
		if len(resp.Header) > m.cfg.MaxResponseBytes {
			resp.Header = nil
		}
	}
	r.state, r.token, r.fingerprint, r.response = Replay, token, fp, resp
	r.since, r.ends, r.owed = now, after(now, orDefault(resp.TTL, m.cfg.TTL)), 0
	m.tally.Completed++
}

// sameResponse checks a replay and then writes over it: what a store returns is the caller's.
func (m *model) sameResponse(r *modelRecord, got Response) {
	want := r.response
	want.TTL, want.StoredAt = 0, m.time(r.since)
	require.True(m.t, bytes.Equal(want.Header, got.Header), "header")
	require.True(m.t, bytes.Equal(want.Body, got.Body), "body")
	for _, b := range [][]byte{got.Header[:cap(got.Header)], got.Body} {
		for i := range b {
			b[i] ^= 0xff
		}
	}
	want.Header, want.Body, got.Header, got.Body = nil, nil, nil, nil
	require.Equal(m.t, want, got)
}

// time is what a record tells of its age: whole µs.
func (m *model) time(since int64) time.Time {
	return m.e.clock.start.Add(time.Duration(since).Truncate(time.Microsecond))
}

// reconcile lets everybody run who can, and checks the answers of those who wait no more, each at the time
// at which it came. It must follow every step.
func (m *model) reconcile() {
	synctest.Wait()
	m.waking = true
	defer func() { m.before, m.waking = m.last, false }()
	var answered []*modelWaiter
	for _, r := range m.records {
		answered = slices.AppendSeq(answered, func(yield func(*modelWaiter) bool) {
			for _, w := range r.queue {
				if w.done && !yield(w) {
					return
				}
			}
		})
	}
	slices.SortFunc(answered, func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.out.Claim.Token, b.out.Claim.Token))
	})
	for _, w := range answered {
		m.woke(w)
	}
	now := m.e.clock.now()
	for k := range m.records {
		m.rest(k, now)
	}
}

// woke checks the answer of one who waited.
func (m *model) woke(w *modelWaiter) {
	r := m.at(modelKey{w.req.Scope, w.req.Key}, w.at)
	first := r.queue[0]
	r.queue = slices.DeleteFunc(r.queue, func(x *modelWaiter) bool { return x == w })
	switch {
	case errors.Is(w.err, errFuzzCancel):
		require.True(m.t, w.gone)
	case errors.Is(w.err, errFuzzPatience):
		require.Equal(m.t, w.until, w.at)
	case r.owed > 0 || !r.live(w.at):
		require.LessOrEqual(m.t, w.at, after(r.ends, fuzzLate), "woken late")
		require.True(m.t, first == w || r.unordered || w.err != nil, "not who waited longest")
		r.owed = max(r.owed-1, 0)
		r.taken = r.taken || w.err == nil
		m.granted(r, w.req, w.out, w.err, w.at)
	default:
		require.True(m.t, r.state != InProgress || r.unordered, "woken for nothing")
		require.True(m.t, r.state != Unknown || w.at <= r.lapsed+fuzzLate, "woken late")
		m.began(w.req, w.out, w.err, w.at)
	}
	w.cancel(nil)
}

// rest checks those who go on waiting for a key: there is something to wait for.
func (m *model) rest(k modelKey, now int64) {
	r := m.at(k, now)
	if r.owed > 0 {
		m.unclaimed(k, r)
	}
	r.owed, r.taken = 0, false
	r.unordered = r.unordered && len(r.queue) > 0
	for _, w := range r.queue {
		waits := r.state == InProgress && now <= after(r.ends, fuzzLate) && r.fingerprint == w.req.Fingerprint
		settling := m.cfg.OnLeaseExpiry == Hold && now <= r.lapsed+fuzzLate
		require.True(m.t, waits || settling, "%q: a waiter sleeps beside %+v at %d", k, r, now)
		require.Less(m.t, now, w.until)
	}
}

// unclaimed settles a hand-over that no waiter took: either all of them left, or it overtook another one,
// whose taker is the owner then, or was.
func (m *model) unclaimed(k modelKey, r *modelRecord) {
	rec := m.peek(k)
	if rec == nil {
		require.Empty(m.t, r.queue, "%q: nobody has the claim, and somebody waits", k)
		r.clear()
		return
	}
	require.True(m.t, r.taken && rec.token() == r.token, "%q: the claim of token %d is nobody's", k, rec.token())
}

// peek returns the engine's record of a key, whatever its state.
func (m *model) peek(k modelKey) record {
	s := m.e.shardOf(k.scope, k.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, rec := s.findLocked(m.e.hash(k.scope, k.key), k.scope, k.key)
	return rec
}

// compare holds every record of the engine against the model's, and looks for those that are missing.
func (m *model) compare() {
	checkInvariants(m.t, m.e)
	now, waiting, found := m.e.clock.now(), 0, 0
	for k := range m.records {
		r := m.at(k, now)
		waiting += len(r.queue)
		rec := m.peek(k)
		if rec == nil {
			require.False(m.t, r.live(now), "%q is missing: %+v at %d", k, r, now)
			continue
		}
		found++
		if rec.deadline() > now {
			m.sameRecord(k, r, rec)
			continue
		}
		held := after(rec.deadline(), fuzzLate)
		if rec.state() != flagInProgress {
			held = fuzzHeld(rec.since(), rec.deadline())
		}
		require.LessOrEqual(m.t, now, held, "%q is not reclaimed", k)
		settling := r.state == Unknown && r.lapsed == rec.deadline() && r.token == rec.token()
		require.True(m.t, settling || !r.live(now), "%q has expired early: %+v at %d", k, r, now)
	}
	require.Equal(m.t, found, m.e.Len(), "records of keys that were never used")
	require.Equal(m.t, int64(waiting), m.e.waiting.Load(), "callers that wait")
}

// sameRecord compares two live records. It learns the token that Resolve took.
func (m *model) sameRecord(k modelKey, r *modelRecord, rec record) {
	flag := [...]uint64{InProgress: flagInProgress, Replay: flagDone, Unknown: flagUnknown}[r.state]
	require.Equal(m.t, flag, rec.state(), "state of %q", k)
	require.Equal(m.t, r.ends, rec.deadline(), "deadline of %q", k)
	require.Equal(m.t, r.fingerprint, rec.fingerprint(), "fingerprint of %q", k)
	if r.token == 0 {
		m.grant(rec.token())
		r.token = rec.token()
	}
	require.Equal(m.t, r.token, rec.token(), "token of %q", k)
	if r.state == Replay {
		payload := slices.Concat(r.response.Header, r.response.Body)
		require.True(m.t, bytes.Equal(payload, rec.payload()), "payload of %q", k)
	}
}

// sameLookup checks what an Inspector tells of a live record.
func (m *model) sameLookup(k modelKey, r *modelRecord, got Record, now int64) {
	require.Equal(m.t, modelKey{got.Scope, got.Key}, k)
	require.Equal(m.t, r.state, got.State)
	require.Equal(m.t, r.fingerprint, got.Fingerprint)
	require.Equal(m.t, time.Duration(r.ends-now), got.Remaining)
	if r.token != 0 {
		require.Equal(m.t, r.token, got.Token)
	} else {
		require.Greater(m.t, got.Token, m.last, "tokens grow")
	}
	if r.since != sinceUnknown {
		require.Equal(m.t, m.time(r.since), got.Since)
	}
	if r.state == Replay {
		m.sameResponse(r, got.Response)
	} else {
		require.Zero(m.t, got.Response)
	}
}

// close ends the engine with callers still waiting.
func (m *model) close() {
	m.tallied()
	for k, r := range m.records {
		for _, w := range r.queue {
			require.True(m.t, w.done, "%q: a waiter sleeps on", k)
			require.ErrorIs(m.t, w.err, ErrClosed)
		}
	}
}

// tallied closes the engine and looks at what it has counted.
func (m *model) tallied() {
	require.NoError(m.t, m.e.Close())
	synctest.Wait()
	require.Zero(m.t, m.e.bytes.Load())
	require.Zero(m.t, m.e.waiting.Load())
	got := m.e.Stats()
	for _, c := range []struct {
		name      string
		want, got uint64
	}{
		{"Fresh", m.tally.Fresh, got.Fresh}, {"Replayed", m.tally.Replayed, got.Replayed},
		{"Duplicates", m.tally.Duplicates, got.Duplicates}, {"Mismatched", m.tally.Mismatched, got.Mismatched},
		{"Unknown", m.tally.Unknown, got.Unknown}, {"Completed", m.tally.Completed, got.Completed},
		{"Forgotten", m.tally.Forgotten, got.Forgotten}, {"Resolved", m.tally.Resolved, got.Resolved},
		{"Lost", m.tally.Lost, got.Lost}, {"Refused", m.tally.Refused, got.Refused},
	} {
		require.Equal(m.t, c.want, c.got, "Stats.%s", c.name)
	}
}
