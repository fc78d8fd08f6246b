package idemtest_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// A reference is the contract written down as plainly as it can be: one lock, one map, time as it is at
// each call. It is what the suite is proven on, and is compared with to read a rule.
type reference struct {
	cfg idemtest.Config

	mu      sync.Mutex
	closed  bool
	token   uint64
	waiting int
	records map[name]*entry
}

type name struct{ scope, key string }

type entry struct {
	state    idem.State // InProgress, Replay or Unknown
	token    uint64
	print    idem.Fingerprint
	since    time.Time
	deadline time.Time // of the lease or the TTL
	response idem.Response
	waiters  []*waiter // by when they came
}

// A waiter is a caller that waits for an entry.
type waiter struct {
	look  chan struct{} // has room for one: look again
	req   idem.Request
	owner *idem.Outcome // set by who makes it the owner
}

func newReference(cfg idemtest.Config) *reference {
	cfg.TTL = orDefault(cfg.TTL, 24*time.Hour)
	cfg.Lease = orDefault(cfg.Lease, 30*time.Second)
	cfg.MaxKeyBytes = orDefault(cfg.MaxKeyBytes, 255)
	cfg.MaxResponseBytes = orDefault(cfg.MaxResponseBytes, 1<<20)
	cfg.MaxRecords = orDefault(cfg.MaxRecords, math.MaxInt)
	cfg.MaxWaiters = orDefault(cfg.MaxWaiters, math.MaxInt)
	cfg.MaxWaitersPerKey = orDefault(cfg.MaxWaitersPerKey, math.MaxInt)
	return &reference{cfg: cfg, token: uint64(time.Now().UnixMicro()), records: map[name]*entry{}}
}

// orDefault returns v, or d when v is zero.
func orDefault[T comparable](v, d T) T {
	if v == *new(T) {
		return d
	}
	return v
}

// check is what every method begins with.
func (s *reference) check(ctx context.Context, scope, key string, d time.Duration) error {
	switch {
	case ctx == nil:
		return errors.New("nil context")
	case d < 0:
		return errors.New("negative duration")
	case key == "" || max(len(key), len(scope)) > s.cfg.MaxKeyBytes:
		return idem.ErrKey
	case s.closed:
		return idem.ErrClosed
	}
	return nil
}

// at is now+d, or as late as there is.
func at(now time.Time, d time.Duration) time.Time { return now.Add(min(d, 250*365*24*time.Hour)) }

// look returns the entry of a key as it is now, or nil.
func (s *reference) look(n name, now time.Time) *entry {
	e := s.records[n]
	if e == nil || now.Before(e.deadline) {
		return e
	}
	if e.state == idem.InProgress && s.cfg.OnLeaseExpiry == idem.Hold {
		e.state, e.deadline = idem.Unknown, at(e.deadline, s.cfg.TTL)
		e.wakeAll()
		return s.look(n, now)
	}
	return s.free(n, now)
}

// free makes the first waiter the owner of a key, or removes the entry. It returns what is there then.
func (s *reference) free(n name, now time.Time) *entry {
	e := s.records[n]
	delete(s.records, n)
	if len(e.waiters) == 0 {
		return nil
	}
	first, others := e.waiters[0], e.waiters[1:]
	e, first.owner = s.claim(first.req, now)
	e.waiters = others
	e.wakeAll() // the others, for the new lease may be shorter
	first.wake()
	return e
}

// claim puts an entry under a new token in place and returns the outcome that tells its owner so.
func (s *reference) claim(req idem.Request, now time.Time) (*entry, *idem.Outcome) {
	s.token++
	e := &entry{state: idem.InProgress, token: s.token, print: req.Fingerprint, since: now}
	e.deadline = at(now, orDefault(req.Lease, s.cfg.Lease))
	s.records[name{req.Scope, req.Key}] = e
	c := idem.Claim{Scope: req.Scope, Key: req.Key, Token: e.token, Fingerprint: e.print}
	return e, &idem.Outcome{State: idem.Fresh, Claim: c, Remaining: e.deadline.Sub(now)}
}

func (w *waiter) wake() {
	select {
	case w.look <- struct{}{}:
	default:
	}
}

// wakeAll has those who wait look again. They go on waiting if e is still in progress.
func (e *entry) wakeAll() {
	for _, w := range e.waiters {
		w.wake()
	}
}

func (s *reference) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx, req.Scope, req.Key, req.Lease); err != nil {
		return idem.Outcome{}, err
	}
	n := name{req.Scope, req.Key}
	for ctx.Err() == nil && !s.closed {
		now := time.Now()
		e := s.look(n, now)
		switch {
		case e == nil && !s.hasRoom(now):
			return idem.Outcome{}, idem.ErrFull
		case e == nil:
			_, out := s.claim(req, now)
			return *out, nil
		case e.print != req.Fingerprint:
			return idem.Outcome{State: idem.Mismatch}, nil
		case e.state == idem.Replay:
			return idem.Outcome{State: idem.Replay, Response: e.replay(req.Buf)}, nil
		case e.state == idem.Unknown:
			return idem.Outcome{State: idem.Unknown}, nil
		case !req.Wait || s.waiting >= s.cfg.MaxWaiters || len(e.waiters) >= s.cfg.MaxWaitersPerKey:
			return idem.Outcome{State: idem.InProgress, Remaining: e.deadline.Sub(now)}, nil
		}
		if out := s.wait(ctx, e, req); out != nil {
			return *out, nil
		}
	}
	if s.closed {
		return idem.Outcome{}, idem.ErrClosed
	}
	return idem.Outcome{}, context.Cause(ctx)
}

// hasRoom removes what has expired if that is needed to make room.
func (s *reference) hasRoom(now time.Time) bool {
	if len(s.records) >= s.cfg.MaxRecords {
		for n := range s.records {
			s.look(n, now)
		}
	}
	return len(s.records) < s.cfg.MaxRecords
}

// wait blocks while e is in progress and ctx lasts. It returns an outcome if the caller is the owner then.
func (s *reference) wait(ctx context.Context, e *entry, req idem.Request) *idem.Outcome {
	w := &waiter{look: make(chan struct{}, 1), req: req}
	e.waiters = append(e.waiters, w)
	s.waiting++
	for ctx.Err() == nil && !s.closed && w.owner == nil && e != nil && e.state == idem.InProgress {
		left := time.Until(e.deadline)
		s.mu.Unlock()
		select {
		case <-w.look:
		case <-ctx.Done():
		case <-time.After(left):
		}
		s.mu.Lock()
		e = s.look(name{req.Scope, req.Key}, time.Now())
	}
	s.waiting--
	if e != nil {
		e.waiters = slices.DeleteFunc(e.waiters, func(other *waiter) bool { return other == w })
	}
	return w.owner
}

// replay appends the response to buf, which may be nil.
func (e *entry) replay(buf []byte) idem.Response {
	resp := e.response
	buf = append(append(buf[:0], resp.Header...), resp.Body...)
	split := len(resp.Header)
	resp.Header, resp.Body = buf[:split:split], buf[split:]
	return resp
}

// current returns the entry that c may change, nil if the key is free, and an error otherwise.
func (s *reference) current(c idem.Claim, now time.Time) (*entry, error) {
	n := name{c.Scope, c.Key}
	e := s.records[n]
	if e != nil && e.token == c.Token && e.state == idem.InProgress {
		return e, nil // its lease may have run out, but nobody has taken over
	}
	if e = s.look(n, now); e != nil && e.token != c.Token {
		return nil, idem.ErrClaimLost
	}
	return e, nil
}

func (s *reference) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx != nil && c == (idem.Claim{}) {
		return idem.ErrClaimLost
	}
	if err := s.check(ctx, c.Scope, c.Key, resp.TTL); err != nil {
		return err
	}
	now := time.Now()
	e, err := s.current(c, now)
	if err != nil || e != nil && e.state == idem.Replay {
		return err
	}
	if e == nil {
		e = s.restore(c, now)
	}
	return s.finish(e, resp, now)
}

func (s *reference) restore(c idem.Claim, now time.Time) *entry {
	e, _ := s.claim(idem.Request{Scope: c.Scope, Key: c.Key, Fingerprint: c.Fingerprint}, now)
	e.token = c.Token
	return e
}

func (s *reference) finish(e *entry, resp idem.Response, now time.Time) (err error) {
	ttl := orDefault(resp.TTL, s.cfg.TTL)
	if len(resp.Header)+len(resp.Body) > s.cfg.MaxResponseBytes {
		resp.Header, resp.Body, resp.Truncated = nil, nil, true
		err = idem.ErrTruncated
	}
	resp.Header, resp.Body = bytes.Clone(resp.Header), bytes.Clone(resp.Body)
	resp.StoredAt, resp.TTL = now, 0
	e.state, e.response, e.since, e.deadline = idem.Replay, resp, now, at(now, ttl)
	e.wakeAll()
	return err
}

func (s *reference) Abandon(ctx context.Context, c idem.Claim) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx != nil && c == (idem.Claim{}) {
		return nil
	}
	if err := s.check(ctx, c.Scope, c.Key, 0); err != nil {
		return err
	}
	now := time.Now()
	e, err := s.current(c, now)
	if err == nil && e != nil && e.state != idem.Replay {
		s.free(name{c.Scope, c.Key}, now)
	}
	return err
}

func (s *reference) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx != nil && c == (idem.Claim{}) {
		return idem.ErrClaimLost
	}
	if err := s.check(ctx, c.Scope, c.Key, lease); err != nil {
		return err
	}
	now := time.Now()
	e, err := s.current(c, now)
	switch {
	case err != nil:
		return err
	case e == nil:
		e = s.restore(c, now)
	case e.state == idem.Replay:
		return idem.ErrClaimLost
	}
	e.state, e.deadline = idem.InProgress, at(now, orDefault(lease, s.cfg.Lease))
	e.wakeAll()
	return nil
}

func (s *reference) Lookup(ctx context.Context, scope, key string) (idem.Record, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx, scope, key, 0); err != nil {
		return idem.Record{}, false, err
	}
	now := time.Now()
	e := s.look(name{scope, key}, now)
	if e == nil {
		return idem.Record{}, false, nil
	}
	rec := idem.Record{
		Scope: scope, Key: key, State: e.state, Token: e.token, Fingerprint: e.print,
		Since: e.since, Remaining: e.deadline.Sub(now),
	}
	if e.state == idem.Replay {
		rec.Response = e.replay(nil)
	}
	return rec, true, nil
}

func (s *reference) Forget(ctx context.Context, scope, key string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx, scope, key, 0); err != nil {
		return false, err
	}
	now := time.Now()
	if s.look(name{scope, key}, now) == nil {
		return false, nil
	}
	s.free(name{scope, key}, now)
	return true, nil
}

func (s *reference) Resolve(ctx context.Context, scope, key string, resp idem.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx, scope, key, resp.TTL); err != nil {
		return err
	}
	now := time.Now()
	e := s.look(name{scope, key}, now)
	if e == nil || e.state == idem.Replay {
		return idem.ErrNoClaim
	}
	s.token++
	e.token = s.token
	return s.finish(e, resp, now)
}

func (s *reference) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, e := range s.records {
		e.wakeAll()
	}
	return nil
}
