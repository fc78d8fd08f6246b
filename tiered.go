package idem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// A TieredStore is a [Store] and an [Inspector] that keeps responses of another store at hand. It is made by
// [Tiered].
type TieredStore struct {
	local     *Engine
	remote    Store
	inspector Inspector // remote, or nil when it is none

	asking, waiting *waitroom.Room[Outcome] // callers without and with Request.Wait

	mu      sync.RWMutex
	forgets uint64 // under mu: how often Forget or Resolve was called
}

var (
	_ Store     = (*TieredStore)(nil)
	_ Inspector = (*TieredStore)(nil)
)

// maxAsking is how many callers that do not wait share a question. They are answered soon, so they may be more than
// those who wait.
const maxAsking = 4096

// Tiered returns a store that answers from local what it knows to be done, and leaves everything else to
// remote: a store that processes share. It panics when one of them is nil, or when local holds records that are not a
// TieredStore's.
//
//   - A request that repeats one whose response is known here, fingerprint included, is replayed from local
//     without a round trip. Everything else is asked of remote, which alone grants claims, and whose other
//     methods are called as they are.
//   - Callers of this process that ask for the same key at a time share one question. Those who wait are capped
//     by local's MaxWaiters and MaxWaitersPerKey.
//   - A response comes to be known here when it is replayed for the first time, which costs two round trips
//     instead of one: remote is also asked how long it lives. A remote that is no Inspector cannot tell, and then
//     nothing is kept.
//   - A response is kept until its own time is over and no longer, and at most for local's [Config.TTL]. That
//     is the bound for the one thing that this store may be late to see: that another process had the record
//     forgotten. A minute will do for most, the default of 24 hours hardly ever. What this process forgets or
//     resolves it sees at once, and what another one forgot when remote grants the key anew.
//   - A full local keeps nothing more; that costs time, not correctness.
//
// local must not be used for anything else; it has no snapshots, since remote knows it all. The caller closes both when
// the store is no longer used; it has nothing of its own to close. How often local answered is in its Stats, as Replayed.
func Tiered(local *Engine, remote Store) *TieredStore {
	if local == nil || remote == nil {
		panic("idem: Tiered with a nil engine or store")
	}
	if !local.tier.Swap(true) && local.Len() > 0 {
		panic("idem: Tiered with an engine that holds records of its own")
	}
	inspector, _ := remote.(Inspector)
	cfg := &local.cfg
	return &TieredStore{
		local: local, remote: remote, inspector: inspector,
		asking:  waitroom.New[Outcome](waitroom.Config{MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: maxAsking}),
		waiting: waitroom.New[Outcome](waitroom.Config{MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey}),
	}
}

// Begin implements [Store]. A replay from local that finds room in req.Buf, for twelve bytes more than the
// response has, allocates nothing.
func (t *TieredStore) Begin(ctx context.Context, req Request) (out Outcome, err error) {
	switch {
	case ctx == nil:
		return Outcome{}, errNilContext
	case ctx.Err() != nil:
		return Outcome{}, context.Cause(ctx)
	case req.Lease < 0:
		return Outcome{}, fmt.Errorf("idem: Request.Lease is %v, want zero or more", req.Lease)
	}
	if t.known(&req, &out) {
		return out, nil
	}
	if out, err = t.ask(ctx, req); out.State == Replay {
		out.Response.clone(req.Buf) // others may have got the same one
	}
	return out, err
}

// Complete implements [Store]. What it records comes to be known here with the first replay: until then
// neither its end nor what the store made of it is certain, since this need not be the first Complete of the claim.
func (t *TieredStore) Complete(ctx context.Context, c Claim, resp Response) error {
	return t.remote.Complete(ctx, c, resp)
}

// Abandon implements [Store].
func (t *TieredStore) Abandon(ctx context.Context, c Claim) error { return t.remote.Abandon(ctx, c) }

// Extend implements [Store].
func (t *TieredStore) Extend(ctx context.Context, c Claim, lease time.Duration) error {
	return t.remote.Extend(ctx, c, lease)
}

// Lookup implements [Inspector]. It asks the remote store, and returns [errors.ErrUnsupported] when that is no
// Inspector; so do Forget and Resolve.
func (t *TieredStore) Lookup(ctx context.Context, scope, key string) (Record, bool, error) {
	if t.inspector == nil {
		return Record{}, false, t.unsupported()
	}
	return t.inspector.Lookup(ctx, scope, key)
}

// Forget implements [Inspector]. Once it has returned, this process does not replay what was forgotten. Other
// processes may do so for as long as their local engines' TTL.
func (t *TieredStore) Forget(ctx context.Context, scope, key string) (bool, error) {
	if t.inspector == nil {
		return false, t.unsupported()
	}
	// Even if it fails, for it may have been carried out nevertheless.
	defer t.drop(scope, key)
	return t.inspector.Forget(ctx, scope, key)
}

// Resolve implements [Inspector].
func (t *TieredStore) Resolve(ctx context.Context, scope, key string, resp Response) error {
	if t.inspector == nil {
		return t.unsupported()
	}
	defer t.drop(scope, key)
	return t.inspector.Resolve(ctx, scope, key, resp)
}

func (t *TieredStore) unsupported() error {
	return fmt.Errorf("idem: remote store %T is no Inspector: %w", t.remote, errors.ErrUnsupported)
}

// known answers req from local. A record with another fingerprint is no answer: what it was compared with
// may have been forgotten.
func (t *TieredStore) known(req *Request, out *Outcome) bool {
	if hot := t.local.hottest.Load(); hot == nil || !hot.replay(req, out) {
		s := t.local.shardOf(req.Scope, req.Key)
		if !s.replayHot(req, out) && !s.replay(req, t.local.hash(req.Scope, req.Key), out) {
			return false
		}
	}
	unpack(&out.Response)
	return true
}

// ask asks the remote store, or waits for the answer to the same question that another caller asks.
func (t *TieredStore) ask(ctx context.Context, req Request) (Outcome, error) {
	req.Buf = nil
	room := t.asking
	if req.Wait {
		room = t.waiting
	}
	key := waitroom.Key{Scope: req.Scope, Key: req.Key, Fingerprint: req.Fingerprint}
	out, err := room.Wait(ctx, key, func(ctx context.Context, _ int) waitroom.Look[Outcome] {
		return t.look(ctx, &req)
	})
	if errors.Is(err, waitroom.ErrCrowded) {
		req.Wait = false
		found := t.look(ctx, &req)
		return found.Result, found.Err
	}
	return out, err
}

// look asks the remote store. A claim is for who asked, every other answer for all who wait with the same request.
func (t *TieredStore) look(ctx context.Context, req *Request) (found waitroom.Look[Outcome]) {
	found.Verdict = waitroom.Everyones
	if t.known(req, &found.Result) {
		return found // since another caller, who was first in line, asked
	}
	forgets := t.forgotten()
	found.Result, found.Err = t.remote.Begin(ctx, *req)
	switch {
	case found.Err != nil:
	case found.Result.State == Fresh:
		found.Verdict = waitroom.Mine
		t.outdate(req.Scope, req.Key)
	case found.Result.State == Replay:
		t.fetch(ctx, req, forgets)
	}
	return found
}

// fetchTimeout bounds how long an answer that is there waits for the tier to take it in.
const fetchTimeout = time.Second

// fetch makes a record known here. It asks for it by Lookup, since a replay does not say how long it will last.
func (t *TieredStore) fetch(ctx context.Context, req *Request, forgets uint64) {
	if t.inspector == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	// What is left is a duration, so that it does not matter what the store's clock shows. It was left at some
	// time after this one.
	asked := t.local.clock.now()
	rec, found, err := t.inspector.Lookup(ctx, req.Scope, req.Key)
	if err != nil || !found || rec.State != Replay {
		return // the caller has its answer; the next one asks again
	}
	t.keep(&rec, after(asked, rec.Remaining), forgets)
}

// keep records what the remote store has recorded, unless something was forgotten since, or it is too large.
func (t *TieredStore) keep(rec *Record, deadline int64, forgets uint64) {
	pack(&rec.Response)
	resp := &rec.Response
	if len(resp.Header)+len(resp.Body) > t.local.cfg.MaxResponseBytes || t.local.checkKey(rec.Scope, rec.Key) != nil {
		return
	}
	own := ownCell(rec.Scope, rec.Key, resp)
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.forgets == forgets {
		t.local.shardOf(rec.Scope, rec.Key).adopt(rec, t.local.hash(rec.Scope, rec.Key), own, deadline)
	}
}

// drop makes this process forget a key. A record that was asked for before is not kept any more when it arrives.
func (t *TieredStore) drop(scope, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgets++
	// Its error is that local is closed, and then it holds nothing.
	_, _ = t.local.shardOf(scope, key).forget(scope, key, t.local.hash(scope, key))
}

// outdate is drop for a key that the remote store has just granted: another process has forgotten what is known of it here.
// Nothing is, nearly always, and then it is not counted, or records that are being fetched would not be kept.
func (t *TieredStore) outdate(scope, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, _ := t.local.shardOf(scope, key).forget(scope, key, t.local.hash(scope, key)); known {
		t.forgets++
	}
}

func (t *TieredStore) forgotten() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.forgets
}

// stampBytes is what a local record holds behind the response's body: when the remote store recorded it, in seconds
// since 1970 and ns, two numbers because dividing one would take a tenth of a replay. The engine can't say it, since it
// knows no time before its own start.
const stampBytes = 8 + 4

func pack(resp *Response) {
	resp.Body = binary.LittleEndian.AppendUint64(resp.Body, uint64(resp.StoredAt.Unix()))
	resp.Body = binary.LittleEndian.AppendUint32(resp.Body, uint32(resp.StoredAt.Nanosecond()))
}

func unpack(resp *Response) {
	n := len(resp.Body) - stampBytes
	stamp := resp.Body[n:]
	resp.StoredAt = time.Unix(int64(binary.LittleEndian.Uint64(stamp)), int64(binary.LittleEndian.Uint32(stamp[8:])))
	if resp.Body = resp.Body[:n:n]; n == 0 {
		resp.Body = nil
	}
}
