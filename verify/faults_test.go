package verify_test

import (
	"context"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

// faults are ways in which a store that processes share can be wrong. Each is a sound store with something in between.
var faults = map[string]func(lin.Store) lin.Store{
	"tokens not compared":   func(s lin.Store) lin.Store { return careless{s} },
	"fresh by a stale look": func(s lin.Store) lin.Store { return twoStep{s} },
	"leases end late":       func(s lin.Store) lin.Store { return lazy{s} },
	"cache without end":     func(s lin.Store) lin.Store { return &hoarding{Store: s, known: map[request]idem.Outcome{}} },
}

// A careless store takes whoever completes for the owner.
type careless struct{ lin.Store }

func (s careless) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if r, found, err := s.Lookup(ctx, c.Scope, c.Key); err == nil && found {
		c.Token = r.Token
	}
	return s.Store.Complete(ctx, c, resp)
}

// A twoStep store claims a key because it was free a moment ago, whatever has come in between.
type twoStep struct{ lin.Store }

func (s twoStep) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if _, found, err := s.Lookup(ctx, req.Scope, req.Key); err == nil && !found {
		_, _ = s.Forget(ctx, req.Scope, req.Key) // if it fails, Begin does
	}
	return s.Store.Begin(ctx, req)
}

// A lazy store lets leases last half as long again.
type lazy struct{ lin.Store }

func (s lazy) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	granted := req.Lease
	req.Lease += req.Lease / 2
	out, err := s.Store.Begin(ctx, req)
	if out.State == idem.Fresh {
		out.Remaining = granted
	}
	return out, err
}

func (s lazy) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	return s.Store.Extend(ctx, c, lease+lease/2)
}

// A hoarding store remembers every replay that it has seen, in each process, and does not look again.
type hoarding struct {
	lin.Store

	mu    sync.Mutex
	known map[request]idem.Outcome
}

type request struct {
	scope, key  string
	fingerprint idem.Fingerprint
}

func (s *hoarding) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	asked := request{req.Scope, req.Key, req.Fingerprint}
	s.mu.Lock()
	out, found := s.known[asked]
	s.mu.Unlock()
	if found {
		return out, nil
	}
	out, err := s.Store.Begin(ctx, req)
	if out.State == idem.Replay {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.known[asked] = out
	}
	return out, err
}
