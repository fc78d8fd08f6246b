package lin_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// A fault is a way in which a plain store breaks the contract.
type fault string

const (
	sound               fault = ""
	twoSteps            fault = "Begin looks and claims in two steps"
	anyoneCompletes     fault = "Complete does not compare tokens"
	anyoneAbandons      fault = "Abandon does not compare tokens"
	anyoneExtends       fault = "Extend does not compare tokens"
	extendReopens       fault = "Extend takes a completed key back into progress"
	extendForgets       fault = "Extend says yes and does nothing"
	completeTwice       fault = "Complete overwrites an earlier response"
	leaseTooShort       fault = "a lease ends early"
	leaseTooLong        fault = "a lease ends late"
	ttlTooLong          fault = "a response is replayed past its TTL"
	replayRefreshes     fault = "a replay starts the TTL anew"
	tokenAgain          fault = "a key begun again gets its former token"
	tokensOfKey         fault = "tokens are counted by key"
	tokensOfShard       fault = "tokens grow by key, unlike from key to key"
	anyFingerprint      fault = "fingerprints are not compared"
	lateFingerprint     fault = "fingerprints are not compared while in progress"
	waiterReleases      fault = "a waiter that gives up removes the owner's record"
	holdTakesOver       fault = "Hold gives the key to the next caller"
	holdLosesOwner      fault = "Hold refuses the late owner"
	lateOwnerRefused    fault = "a late owner is refused though nobody has the key"
	forgetForgets       fault = "Forget says yes and does nothing"
	resolveKeepsToken   fault = "after Resolve the former owner may still complete"
	resolveMakesRecords fault = "Resolve makes a record of an absent key"
	lookupIsLate        fault = "Lookup shows records past their end"
	wrongTimeLeft       fault = "the time left is that of a whole lease"
	tornResponse        fault = "a replay mixes two responses"
)

// A plain store is the contract in its simplest form, one mutex and one map, with at most one fault.
type plain struct {
	policy idem.LeasePolicy
	fault  fault

	mu      sync.Mutex
	last    uint64            // the last token
	counts  map[string]uint64 // of claims by key, for the faults that need it
	records map[string]*record
}

type record struct {
	idem.Record
	lease   time.Duration
	ends    time.Time
	changed chan struct{} // closed when the record leaves the state InProgress
}

func newPlain(policy idem.LeasePolicy, f fault) *plain {
	return &plain{policy: policy, fault: f, counts: map[string]uint64{}, records: map[string]*record{}}
}

// look returns the key's record as it is now.
func (p *plain) look(key string) *record {
	r := p.records[key]
	if r == nil || time.Now().Before(r.ends) {
		return r
	}
	if r.State == idem.InProgress && p.policy == idem.Hold && p.fault != holdTakesOver {
		r.State, r.ends = idem.Unknown, r.ends.Add(time.Hour)
		if p.fault == holdLosesOwner {
			r.Token = 0
		}
		close(r.changed)
		return r
	}
	p.remove(key)
	return nil
}

func (p *plain) remove(key string) {
	if r := p.records[key]; r != nil && r.State == idem.InProgress {
		close(r.changed)
	}
	delete(p.records, key)
}

func (p *plain) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	for {
		out, changed, err := p.try(req)
		if changed == nil {
			return out, err
		}
		timer := time.NewTimer(out.Remaining)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if p.fault == waiterReleases {
				p.mu.Lock()
				p.remove(req.Key)
				p.mu.Unlock()
			}
			return idem.Outcome{}, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// try answers the request, or returns the channel that it has to wait for.
func (p *plain) try(req idem.Request) (idem.Outcome, chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.look(req.Key)
	if r == nil {
		if p.fault == twoSteps {
			p.mu.Unlock()
			runtime.Gosched()
			p.mu.Lock()
		}
		return p.claim(req), nil, nil
	}
	compared := p.fault != anyFingerprint && (p.fault != lateFingerprint || r.State != idem.InProgress)
	if compared && r.Fingerprint != req.Fingerprint {
		return idem.Outcome{State: idem.Mismatch}, nil, nil
	}
	switch r.State {
	case idem.InProgress:
		out := idem.Outcome{State: idem.InProgress, Remaining: max(1, time.Until(r.ends))}
		if p.fault == wrongTimeLeft {
			out.Remaining = r.lease
		}
		if req.Wait {
			return out, r.changed, nil
		}
		return out, nil, nil
	case idem.Replay:
		if p.fault == replayRefreshes {
			r.ends = time.Now().Add(r.Remaining)
		}
		out := idem.Outcome{State: idem.Replay, Response: r.Response}
		if p.fault == tornResponse {
			out.Response.Body = bytes.Repeat([]byte{1}, len(out.Response.Body))
		}
		return out, nil, nil
	default:
		return idem.Outcome{State: r.State}, nil, nil
	}
}

func (p *plain) claim(req idem.Request) idem.Outcome {
	token := p.token(req.Key)
	lease := req.Lease
	switch p.fault {
	case leaseTooShort:
		lease /= 4
	case leaseTooLong:
		lease *= 4
	}
	p.put(req.Scope, req.Key, idem.InProgress, token, req.Fingerprint, lease)
	return idem.Outcome{State: idem.Fresh, Remaining: req.Lease, Claim: idem.Claim{
		Scope: req.Scope, Key: req.Key, Token: token, Fingerprint: req.Fingerprint,
	}}
}

// token returns a new one.
func (p *plain) token(key string) uint64 {
	p.counts[key]++
	p.last++
	switch p.fault {
	case tokenAgain:
		return 1
	case tokensOfKey:
		return p.counts[key]
	case tokensOfShard:
		return p.counts[key]<<8 + uint64(key[len(key)-1])
	default:
		return p.last
	}
}

// put makes the key's record anew. The waiters of the former one look again.
func (p *plain) put(scope, key string, is idem.State, token uint64, f idem.Fingerprint, life time.Duration) *record {
	p.remove(key)
	r := &record{lease: life, ends: time.Now().Add(life), changed: make(chan struct{})}
	r.Record = idem.Record{Scope: scope, Key: key, State: is, Token: token, Fingerprint: f, Remaining: life}
	p.records[key] = r
	return r
}

func (p *plain) Complete(_ context.Context, c idem.Claim, resp idem.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.look(c.Key)
	if r == nil && p.fault == lateOwnerRefused {
		return idem.ErrClaimLost
	}
	if r != nil && r.Token != c.Token && p.fault != anyoneCompletes {
		if p.fault != resolveKeepsToken || r.State != idem.Replay {
			return idem.ErrClaimLost
		}
	}
	if r != nil && r.State == idem.Replay && p.fault != completeTwice {
		return nil
	}
	if p.fault == ttlTooLong {
		resp.TTL *= 4
	}
	p.put(c.Scope, c.Key, idem.Replay, c.Token, c.Fingerprint, resp.TTL).Response = resp
	return nil
}

func (p *plain) Abandon(_ context.Context, c idem.Claim) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.look(c.Key)
	switch {
	case r != nil && r.Token != c.Token && p.fault != anyoneAbandons:
		return idem.ErrClaimLost
	case r != nil && r.State != idem.Replay:
		p.remove(c.Key)
	}
	return nil
}

func (p *plain) Extend(_ context.Context, c idem.Claim, lease time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.look(c.Key)
	if r != nil && (r.Token != c.Token && p.fault != anyoneExtends || r.State == idem.Replay && p.fault != extendReopens) {
		return idem.ErrClaimLost
	}
	if p.fault == extendForgets {
		return nil
	}
	p.put(c.Scope, c.Key, idem.InProgress, c.Token, c.Fingerprint, lease)
	return nil
}

func (p *plain) Lookup(_ context.Context, _, key string) (idem.Record, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.records[key]; r != nil && p.fault == lookupIsLate {
		return r.Record, true, nil
	}
	r := p.look(key)
	if r == nil {
		return idem.Record{}, false, nil
	}
	found := r.Record
	found.Remaining = max(1, time.Until(r.ends))
	return found, true, nil
}

func (p *plain) Forget(_ context.Context, _, key string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.look(key) != nil
	if p.fault != forgetForgets {
		p.remove(key)
	}
	return found, nil
}

func (p *plain) Resolve(_ context.Context, scope, key string, resp idem.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.look(key)
	if r == nil && p.fault == resolveMakesRecords {
		r = &record{}
	}
	if r == nil || r.State == idem.Replay {
		return idem.ErrNoClaim
	}
	token := r.Token
	if p.fault != resolveKeepsToken {
		token = p.token(key)
	}
	p.put(scope, key, idem.Replay, token, r.Fingerprint, resp.TTL).Response = resp
	return nil
}
