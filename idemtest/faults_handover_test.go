package idemtest_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// handOverFaults are about callers that waited.
func handOverFaults() []fault {
	return []fault{{
		name: "StoredAt of a waiter is its wake-up", row: "wait/replay is whole",
		inject: func(b *broken, cfg idemtest.Config) {
			onWoken(func(_ context.Context, _ idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if out.State == idem.Replay {
					out.Response.StoredAt = time.Now().Add(time.Microsecond)
				}
				return out, nil
			})(b, cfg)
		},
	}, {
		name: "a waiter's replay lacks Failed", row: "wait/replay is whole",
		inject: func(b *broken, cfg idemtest.Config) {
			onWoken(func(_ context.Context, _ idem.Request, out idem.Outcome) (idem.Outcome, error) {
				out.Response.Failed = out.Response.Failed && out.Response.Truncated
				return out, nil
			})(b, cfg)
		},
	}, {
		name: "token kept when the lease's end passes the claim on", row: "wait/new owner is like any other", inject: sameToken(false),
	}, {
		name: "token kept when Forget passes the claim on", row: "wait/new owner is like any other", inject: sameToken(true),
	}, {
		name: "a waiter's lease counts from when it came", row: "wait/new owner is like any other",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				came := time.Now()
				out, err := b.whole.Begin(ctx, req)
				if out.State == idem.Fresh && req.Wait && req.Lease > 0 && req.Lease < math.MaxInt64/2 && time.Since(came) > 0 {
					out.Remaining = max(1, req.Lease-time.Since(came))
					err = b.whole.Extend(ctx, out.Claim, out.Remaining)
				}
				return out, err
			}
		},
	}, {
		name: "a waiter's claim lacks the fingerprint", row: "wait/new owner is like any other",
		inject: func(b *broken, cfg idemtest.Config) {
			onWoken(func(_ context.Context, _ idem.Request, out idem.Outcome) (idem.Outcome, error) {
				out.Claim.Fingerprint = idem.Fingerprint{}
				return out, nil
			})(b, cfg)
		},
	}, {
		name: "a leaseless waiter gets a lease for ever", row: "lease/zero is the default",
		inject: func(b *broken, cfg idemtest.Config) {
			onWoken(func(ctx context.Context, req idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if out.State == idem.Fresh && req.Lease == 0 {
					return out, b.whole.Extend(ctx, out.Claim, math.MaxInt64)
				}
				return out, nil
			})(b, cfg)
		},
	}, {
		name: "room of waiters that were woken is lost", row: "wait/caps give back", inject: leakWaiters,
	}, {
		name: "waiters known by key without scope", row: "wait/keys are apart", inject: wakeByKey,
	}}
}

// sameToken shows a waiter that becomes the owner the token of the one before, whose claim stays good.
func sameToken(byForget bool) func(*broken, idemtest.Config) {
	return func(b *broken, cfg idemtest.Config) {
		var freed, forgotten notes[name, bool]
		var within, shown notes[uint64, uint64]
		var lastOf notes[name, uint64]
		inner := func(c idem.Claim) idem.Claim {
			if t := within.get(c.Token); t != 0 {
				c.Token = t
			}
			return c
		}
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			n := nameOf(req)
			waits := req.Wait && b.find(req.Scope, req.Key).State == idem.InProgress
			out, err := b.whole.Begin(ctx, req)
			if out.State != idem.Fresh {
				return out, err
			}
			by := !freed.get(n) && !forgotten.get(n)
			if byForget {
				by = forgotten.get(n)
			}
			granted := out.Claim.Token
			if waits && by && lastOf.get(n) != 0 {
				out.Claim.Token = lastOf.get(n)
				within.set(out.Claim.Token, granted)
				shown.set(granted, out.Claim.Token)
			}
			freed.drop(n)
			forgotten.drop(n)
			lastOf.set(n, out.Claim.Token)
			return out, err
		}
		b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
			return b.whole.Complete(ctx, inner(c), resp)
		}
		b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
			return b.whole.Extend(ctx, inner(c), lease)
		}
		b.abandon = func(ctx context.Context, c idem.Claim) error {
			freed.set(nameOfClaim(c), true)
			return b.whole.Abandon(ctx, inner(c))
		}
		b.forget = func(ctx context.Context, scope, key string) (bool, error) {
			forgotten.set(name{scope, key}, true)
			return b.whole.Forget(ctx, scope, key)
		}
		b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
			rec, found, err := b.whole.Lookup(ctx, scope, key)
			if t := shown.get(rec.Token); t != 0 {
				rec.Token = t
			}
			return rec, found, err
		}
	}
}

func leakWaiters(b *broken, cfg idemtest.Config) {
	if cfg.MaxWaiters == 0 {
		return
	}
	var now, leaked atomic.Int64
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		waits := req.Wait && b.find(req.Scope, req.Key).State == idem.InProgress
		if waits && int(now.Add(1)+leaked.Load()) > cfg.MaxWaiters {
			req.Wait = false
		}
		out, err := b.whole.Begin(ctx, req)
		if waits {
			now.Add(-1)
			if req.Wait && err == nil && out.State != idem.InProgress {
				leaked.Add(1)
			}
		}
		return out, err
	}
}

// wakeByKey has those who wait for a key in another scope wake, too.
func wakeByKey(b *broken, _ idemtest.Config) {
	var mu sync.Mutex
	waiting := map[string]map[chan idem.Response]string{}
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		if !req.Wait || b.find(req.Scope, req.Key).State != idem.InProgress {
			return b.whole.Begin(ctx, req)
		}
		me := make(chan idem.Response, 1)
		mu.Lock()
		if waiting[req.Key] == nil {
			waiting[req.Key] = map[chan idem.Response]string{}
		}
		waiting[req.Key][me] = req.Scope
		mu.Unlock()
		defer func() { mu.Lock(); delete(waiting[req.Key], me); mu.Unlock() }()
		ctx2, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		woken := errors.New("woken")
		var got idem.Response
		go func() {
			select {
			case got = <-me:
				cancel(woken)
			case <-ctx2.Done():
			}
		}()
		out, err := b.whole.Begin(ctx2, req)
		if errors.Is(err, woken) {
			return idem.Outcome{State: idem.Replay, Response: got}, nil
		}
		return out, err
	}
	b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
		err := b.whole.Complete(ctx, c, resp)
		if err == nil {
			mu.Lock()
			for w, scope := range waiting[c.Key] {
				if scope != c.Scope {
					resp.StoredAt, resp.TTL = time.Now(), 0
					select {
					case w <- resp:
					default:
					}
				}
			}
			mu.Unlock()
		}
		return err
	}
}
