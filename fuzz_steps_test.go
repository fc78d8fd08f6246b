package idem

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func (f *engineFuzz) note(format string, args ...any) {
	f.trace = append(f.trace, fmt.Sprintf("%d: ", f.e.clock.now())+fmt.Sprintf(format, args...))
}

func (f *engineFuzz) key() modelKey { return pick(&f.tape, fuzzKeys...) }

func (f *engineFuzz) request() Request {
	k := f.key()
	how := f.next()
	req := Request{Scope: k.scope, Key: k.key, Fingerprint: Fingerprint{byte(max(how%8-5, 0))}, Lease: pick(&f.tape, lives...)}
	switch how / 8 % 4 {
	case 1:
		req.Buf = make([]byte, 0)
	case 2:
		req.Buf = make([]byte, 100, 50<<10)
	}
	return req
}

// claim chooses one of those that were ever granted, the youngest first, half of the time as if it had been
// sent by wire.
func (f *engineFuzz) claim() (c Claim, ok bool) {
	back, wire := f.next(), f.flag()
	if len(f.pool) == 0 {
		return Claim{}, false
	}
	c = f.pool[len(f.pool)-1-back%len(f.pool)]
	if wire {
		c.origin = nil
	}
	return c, true
}

// response makes bytes that no other response has, of a size at an edge.
func (f *engineFuzz) response() Response {
	size := pick(&f.tape, 0, 1, 17, 300, 5000, f.cfg.MaxResponseBytes-1, f.cfg.MaxResponseBytes, f.cfg.MaxResponseBytes+1,
		maxShared-recordHeader-10, maxShared, 40<<10)
	header, how := pick(&f.tape, 0, 5, 300), f.next()
	payload := make([]byte, max(size, header))
	for i := range payload {
		payload[i] = byte(len(f.trace)*31 + i*7 + i>>8)
	}
	return Response{
		Header: payload[:header], Body: payload[header:], Failed: how&1 != 0, Truncated: how&6 == 6,
		Status: how - 100, TTL: pick(&f.tape, lives...),
	}
}

func (f *engineFuzz) begin() {
	req := f.request()
	f.note("begin %+v", req)
	out, err := f.e.Begin(f.ctx, req)
	f.began(req, out, err, f.e.clock.now())
}

// wait begins and waits. Who is answered at once did not have to.
func (f *engineFuzz) wait() {
	req := f.request()
	req.Wait = true
	now := f.e.clock.now()
	patience := pick(&f.tape, lives...)
	if r := f.at(modelKey{req.Scope, req.Key}, now); r.live(now) && f.flag() {
		patience = time.Duration(r.ends - now) // to the very end of the lease
	}
	if patience == 0 {
		patience = math.MaxInt64
	}
	f.note("wait %+v for %v", req, patience)
	w := &modelWaiter{req: req, until: after(now, patience)}
	ctx, cancel := context.WithCancelCause(f.ctx)
	ctx, stop := context.WithTimeoutCause(ctx, patience, errFuzzPatience)
	w.cancel = cancel
	go func() {
		defer stop()
		w.out, w.err = f.e.Begin(ctx, req)
		w.at, w.done = f.e.clock.now(), true
	}()
	f.queue(w, now)
}

// queue tells the model of a Begin that may wait.
func (f *engineFuzz) queue(w *modelWaiter, now int64) {
	r := f.touch(modelKey{w.req.Scope, w.req.Key}, now)
	all := 0
	for _, other := range f.records {
		all += len(other.queue)
	}
	waits := r.live(now) && r.state == InProgress && r.fingerprint == w.req.Fingerprint &&
		len(r.queue) < f.cfg.MaxWaitersPerKey && all < f.cfg.MaxWaiters
	synctest.Wait()
	if waits {
		r.queue = append(r.queue, w)
		return
	}
	require.True(f.t, w.done, "it waits for nothing")
	f.began(w.req, w.out, w.err, w.at)
	w.cancel(nil)
}

func (f *engineFuzz) complete() {
	c, ok := f.claim()
	if ok {
		f.completeClaim(c, f.response())
	}
}

func (f *engineFuzz) completeClaim(c Claim, resp Response) {
	f.note("complete %q %q %d with %d+%d for %v", c.Scope, c.Key, c.Token, len(resp.Header), len(resp.Body), resp.TTL)
	now := f.e.clock.now()
	r, ok, lost := f.judge(c, now)
	kept := resp
	kept.Header, kept.Body = slices.Clone(resp.Header), slices.Clone(resp.Body)
	err := f.e.Complete(f.ctx, c, resp)
	clear(resp.Header[:cap(resp.Header)]) // the store must have copied them
	cut, again := f.tooLarge(kept), r.state == Replay && r.token == c.Token
	if again { // what was recorded stays
		cut = r.response.Truncated && (cut || !kept.Truncated)
	}
	f.truncated(cut, err)
	if f.told(err, ok, lost) && !again {
		f.finish(r, c.Token, c.Fingerprint, kept, now)
	}
}

func (f *engineFuzz) tooLarge(resp Response) bool {
	return len(resp.Header)+len(resp.Body) > f.cfg.MaxResponseBytes
}

// truncated checks that err says so when the response was cut.
func (f *engineFuzz) truncated(cut bool, err error) {
	if err == nil || errors.Is(err, ErrTruncated) {
		require.Equal(f.t, cut, err != nil)
		return
	}
	require.True(f.t, errors.Is(err, ErrClaimLost) || errors.Is(err, ErrNoClaim), "%v", err)
}

func (f *engineFuzz) abandon() {
	c, ok := f.claim()
	if ok {
		f.abandonClaim(c)
	}
}

func (f *engineFuzz) abandonClaim(c Claim) {
	f.note("abandon %q %q %d", c.Scope, c.Key, c.Token)
	now := f.e.clock.now()
	r, ok, lost := f.judge(c, now)
	err := f.e.Abandon(f.ctx, c)
	if f.told(err, ok, lost) && r.state != Replay && r.token == c.Token {
		f.free(r, now)
	}
}

func (f *engineFuzz) extend() {
	c, ok := f.claim()
	lease := pick(&f.tape, lives...)
	if !ok {
		return
	}
	f.note("extend %q %q %d by %v", c.Scope, c.Key, c.Token, lease)
	now := f.e.clock.now()
	r, ok, lost := f.judge(c, now)
	if r.state == Replay {
		ok, lost = false, true
	}
	err := f.e.Extend(f.ctx, c, lease)
	if !f.told(err, ok, lost) {
		return
	}
	require.NoError(f.t, err)
	if !r.live(now) {
		r.since = sinceUnknown // the record may have been there still, or be a new one
	}
	r.state, r.token, r.fingerprint = InProgress, c.Token, c.Fingerprint
	r.ends = after(now, orDefault(lease, f.cfg.Lease))
}

func (f *engineFuzz) forget() { f.forgetKey(f.key()) }

func (f *engineFuzz) forgetKey(k modelKey) {
	f.note("forget %q", k)
	now := f.e.clock.now()
	r := f.reclaim(k, now)
	found, err := f.e.Forget(f.ctx, k.scope, k.key)
	require.NoError(f.t, err)
	require.Equal(f.t, r.live(now), found)
	if found {
		f.tally.Forgotten++
		f.free(r, now)
	}
}

func (f *engineFuzz) resolve() {
	k, resp := f.key(), f.response()
	f.note("resolve %q with %d+%d for %v", k, len(resp.Header), len(resp.Body), resp.TTL)
	now := f.e.clock.now()
	r := f.reclaim(k, now)
	err := f.e.Resolve(f.ctx, k.scope, k.key, resp)
	f.truncated(f.tooLarge(resp), err)
	require.Equal(f.t, r.live(now) && r.state != Replay, !errors.Is(err, ErrNoClaim), "%v", err)
	if !errors.Is(err, ErrNoClaim) {
		f.tally.Resolved++
		f.finish(r, 0, r.fingerprint, resp, now)
	}
}

func (f *engineFuzz) lookup() {
	k := f.key()
	f.note("lookup %q", k)
	now := f.e.clock.now()
	r := f.reclaim(k, now)
	got, found, err := f.e.Lookup(f.ctx, k.scope, k.key)
	require.NoError(f.t, err)
	require.Equal(f.t, r.live(now), found)
	if found {
		f.sameLookup(k, r, got, now)
	}
}

// all compares the listing with the map.
func (f *engineFuzz) all() {
	f.note("all")
	now, live := f.e.clock.now(), 0
	listed := map[modelKey]bool{}
	for k := range f.records {
		f.reclaim(k, now)
	}
	for got := range f.e.All() {
		k := modelKey{got.Scope, got.Key}
		require.False(f.t, listed[k], "%q is listed twice", k)
		listed[k] = true
		f.sameLookup(k, f.at(k, now), got, now)
	}
	for k := range f.records {
		if f.at(k, now).live(now) {
			live++
			require.True(f.t, listed[k], "%q is not listed", k)
		}
	}
	require.Len(f.t, listed, live)
}

func (f *engineFuzz) sleep() { f.pass(int64(pick(&f.tape, lives...))) }

// sleepToDeadline sleeps to the end of a record or of its tick, or to one ns before or after.
func (f *engineFuzz) sleepToDeadline() {
	now, k := f.e.clock.now(), f.key()
	to := f.at(k, now).ends
	if f.flag() {
		to = (to + 1<<tickBits - 1) >> tickBits << tickBits
	}
	to += pick(&f.tape, int64(-1), 0, 1)
	f.pass(max(to-now, 1))
}

func (f *engineFuzz) pass(d int64) {
	if now := f.e.clock.now(); d > fuzzEnd-now {
		d = 1 << tickBits
	}
	f.note("sleep %v", time.Duration(d))
	time.Sleep(time.Duration(d))
}

func (f *engineFuzz) cancel() { f.cancelOne(f.key()) }

func (f *engineFuzz) cancelOne(k modelKey) {
	n := f.next()
	r := f.at(k, f.e.clock.now())
	if len(r.queue) == 0 {
		return
	}
	w := r.queue[n%len(r.queue)]
	f.note("cancel waiter %d of %q", n%len(r.queue), k)
	w.gone = true
	w.cancel(errFuzzCancel)
}

// heat begins a key so often in a row that a done record becomes the hot one, and starts the coarse clock,
// without which hot records are not read.
func (f *engineFuzz) heat() {
	req := f.request()
	f.note("heat %+v", req)
	for range hotRun {
		out, err := f.e.Begin(f.ctx, req)
		f.began(req, out, err, f.e.clock.now())
		f.reconcile()
	}
	f.e.wantClock()
	if f.flag() {
		f.pass(3 << tickBits)
	}
}

// crowd lets several callers begin one key at once.
func (f *engineFuzz) crowd() {
	req, now := f.request(), f.e.clock.now()
	if len(f.at(modelKey{req.Scope, req.Key}, now).queue) > 0 {
		return
	}
	f.note("crowd %+v", req)
	req.Buf = nil
	type answer struct {
		out Outcome
		err error
	}
	answers := make([]answer, 4)
	for i := range answers {
		go func() { answers[i].out, answers[i].err = f.e.Begin(f.ctx, req) }()
	}
	synctest.Wait()
	// Who was first is Fresh; the others came later.
	slices.SortFunc(answers, func(a, b answer) int { return cmp.Compare(a.out.State-1, b.out.State-1) })
	for _, a := range answers {
		f.began(req, a.out, a.err, now)
	}
}

// bulk claims more keys than one hold of the lock reclaims, with one deadline, and completes some.
func (f *engineFuzz) bulk() {
	req, resp, every := f.request(), f.response(), 1+f.next()%4
	f.note("bulk %+v, every %d done", req, every)
	for i := range fuzzBulk {
		req.Scope, req.Key = "bulk", fmt.Sprint(i)
		out, err := f.e.Begin(f.ctx, req)
		f.began(req, out, err, f.e.clock.now())
		if out.State == Fresh && i%every == 0 {
			f.completeClaim(out.Claim, resp)
		}
	}
}

// rush makes two calls for one key with nobody running in between but by chance: what the first sets off
// has not arrived when the second comes.
func (f *engineFuzz) rush() {
	k := f.key()
	if r := f.at(k, f.e.clock.now()); r.state != InProgress && len(r.queue) > 0 {
		return // the first call would settle what has turned Unknown, and what the second finds is open
	}
	forget := func() { f.forgetKey(k) }
	cancel := func() { f.cancelOne(k) }
	abandon := func() { f.byOwner(k, f.abandonClaim) }
	complete := func() { f.byOwner(k, func(c Claim) { f.completeClaim(c, f.response()) }) }
	for _, call := range pick(&f.tape,
		[]func(){forget, forget}, []func(){forget, cancel}, []func(){cancel, forget}, []func(){abandon, cancel},
		[]func(){cancel, abandon}, []func(){complete, cancel}, []func(){cancel, complete}, []func(){abandon, forget},
	) {
		call()
	}
}

// byOwner calls f with the key's current claim, if somebody has it.
func (f *engineFuzz) byOwner(k modelKey, call func(Claim)) {
	token := f.at(k, f.e.clock.now()).token
	if i := slices.IndexFunc(f.pool, func(c Claim) bool { return c.Token == token }); i >= 0 {
		call(f.pool[i])
	}
}

// restart goes on with another engine that has the snapshot of the first one, as another process would. The model tells
// time by the engine's clock, so its records move.
func (f *engineFuzz) restart() {
	down, twice := pick(&f.tape, lives...), f.flag()
	now := f.e.clock.now()
	for k := range f.records {
		if len(f.at(k, now).queue) > 0 {
			return
		}
	}
	if f.restarts++; f.restarts > fuzzRestarts {
		return
	}
	for k := range f.records {
		f.reclaim(k, now)
	}
	f.note("restart %d", f.restarts)
	var snapshot bytes.Buffer
	require.NoError(f.t, f.e.Snapshot(&snapshot))
	f.pass(int64(down))
	start, saved := f.e.clock.start, snapshot.Bytes()
	f.tallied()
	e, err := New(f.cfg)
	require.NoError(f.t, err)
	f.e, f.tally = e, Stats{}
	require.NoError(f.t, e.Restore(bytes.NewReader(saved)))
	if twice {
		require.NoError(f.t, e.Restore(bytes.NewReader(saved)))
	}
	shift := int64(e.clock.start.Sub(start))
	for _, r := range f.records {
		r.ends, r.lapsed = r.ends-shift, r.lapsed-shift
		if r.since != sinceUnknown {
			age := time.Duration(now) - time.Duration(r.since).Truncate(time.Microsecond)
			r.since = now - shift - int64(age.Truncate(time.Microsecond))
		}
	}
	for i := range f.pool {
		f.pool[i].origin = nil
	}
}
