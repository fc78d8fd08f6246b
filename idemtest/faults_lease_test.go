package idemtest_test

import (
	"context"
	"math"
	"time"
	"unsafe"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

func leaseFaults() []fault {
	return []fault{{
		name: "lease ends early", row: "lease/exact",
		inject: onRequest(func(req *idem.Request) {
			if req.Lease > 150*time.Millisecond && req.Lease < time.Second {
				req.Lease -= time.Millisecond
			}
		}),
	}, {
		name: "mismatch after the lease", row: "lease/any fingerprint takes over",
		inject: func(b *broken, _ idemtest.Config) {
			var owner notes[name, idem.Claim]
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if out.State != idem.Fresh {
					return out, err
				}
				if c := owner.get(nameOf(req)); c.Token != 0 && c.Fingerprint != req.Fingerprint {
					return idem.Outcome{State: idem.Mismatch}, b.whole.Abandon(ctx, out.Claim)
				}
				owner.set(nameOf(req), out.Claim)
				return out, err
			}
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				owner.drop(nameOfClaim(c))
				return b.whole.Complete(ctx, c, resp)
			}
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				owner.drop(nameOfClaim(c))
				return b.whole.Abandon(ctx, c)
			}
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				owner.drop(name{scope, key})
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "lease zero for ever", row: "lease/zero is the default",
		inject: onExtend(func(lease *time.Duration) {
			if *lease == 0 {
				*lease = math.MaxInt64
			}
		}),
	}, {
		name: "lease truncated to milliseconds", row: "lease/tiny is not for ever",
		inject: onRequest(func(req *idem.Request) {
			if req.Lease > 0 {
				req.Lease = req.Lease.Truncate(time.Millisecond)
			}
		}),
	}, {
		name: "lease overflows", row: "lease/huge saturates",
		inject: onExtend(func(lease *time.Duration) {
			if *lease > math.MaxInt64/2 {
				*lease = 1
			}
		}),
	}, {
		name: "lease below zero for zero", row: "lease/negative is an error",
		inject: onRequest(func(req *idem.Request) { req.Lease = max(req.Lease, 0) }),
	}}
}

// onExtend changes what Extend is given.
func onExtend(change func(*time.Duration)) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
			change(&lease)
			return b.whole.Extend(ctx, c, lease)
		}
	}
}

func holdFaults() []fault {
	return []fault{{
		name: "an unknown outcome is waited for", row: "hold/unknown",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				rec := b.find(req.Scope, req.Key)
				if req.Wait && rec.State == idem.Unknown && rec.Fingerprint == req.Fingerprint {
					return hang(ctx)
				}
				return b.whole.Begin(ctx, req)
			}
		},
	}, {
		name: "only one waiter is told", row: "hold/waiters are told",
		also: []string{"wait/caps give back"},
		inject: func(b *broken, _ idemtest.Config) {
			var told notes[name, int]
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				waits := req.Wait && b.find(req.Scope, req.Key).State == idem.InProgress
				out, err := b.whole.Begin(ctx, req)
				if waits && out.State == idem.Unknown && count(&told, nameOf(req)) > 0 {
					return hang(ctx)
				}
				return out, err
			}
		},
	}, {
		name: "nobody ends an unknown outcome but an operator", row: "hold/owner ends it",
		also: []string{"complete/late", "complete/restores it whole", "lease/tiny is not for ever"},
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if b.find(c.Scope, c.Key).State == idem.Unknown {
					return idem.ErrClaimLost
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "an unknown outcome cannot be forgotten", row: "hold/operator ends it",
		inject: func(b *broken, _ idemtest.Config) {
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				if b.find(scope, key).State == idem.Unknown {
					return false, nil
				}
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "looking at an unknown outcome keeps it", row: "hold/ttl ends it",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if out.State == idem.Unknown {
					// The TTL of an outcome counts from the lease's end, so it begins anew.
					rec := b.find(req.Scope, req.Key)
					c := idem.Claim{Scope: req.Scope, Key: req.Key, Token: rec.Token, Fingerprint: rec.Fingerprint}
					err = b.whole.Extend(ctx, c, 1)
					time.Sleep(time.Nanosecond)
				}
				return out, err
			}
		},
	}}
}

// ownerFaults are about Complete, Abandon and Extend.
func ownerFaults() []fault {
	return []fault{{
		name: "a late Complete is refused", row: "complete/late",
		also: []string{"complete/restores it whole"},
		inject: func(b *broken, cfg idemtest.Config) {
			late := lateness(b, cfg)
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if late(c) {
					return idem.ErrClaimLost
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "Complete does not look at the token", row: "complete/lost",
		also: []string{"race/complete or a new owner", "wait/new owner is like any other"},
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				return b.whole.Complete(ctx, b.current(c), resp)
			}
		},
	}, {
		name: "completing again overwrites", row: "complete/twice",
		also: []string{"complete/restores it whole", "race/complete twice"},
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if rec := b.find(c.Scope, c.Key); rec.State == idem.Replay && rec.Token == c.Token {
					b.mustForget(c.Scope, c.Key)
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "what is gone cannot be completed", row: "complete/restores a record that is gone",
		also: []string{"complete/restores it whole"},
		inject: func(b *broken, _ idemtest.Config) {
			var gone notes[uint64, bool]
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				gone.set(b.find(scope, key).Token, true)
				return b.whole.Forget(ctx, scope, key)
			}
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if gone.get(c.Token) {
					return idem.ErrClaimLost
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "zero claim for one that is gone", row: "complete/zero claim",
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if c == (idem.Claim{}) {
					return nil
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "claims known by their memory", row: "complete/claim that was marshalled",
		inject: func(b *broken, cfg idemtest.Config) {
			var keys notes[uint64, string]
			onFresh(func(_ idem.Request, out *idem.Outcome) { keys.set(out.Claim.Token, out.Claim.Key) })(b, cfg)
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if k := keys.get(c.Token); k == c.Key && unsafe.StringData(k) != unsafe.StringData(c.Key) {
					return idem.ErrClaimLost
				}
				return b.whole.Abandon(ctx, c)
			}
		},
	}, {
		name: "claims known by their token alone", row: "complete/claim of another key",
		inject: func(b *broken, cfg idemtest.Config) {
			var granted notes[uint64, idem.Claim]
			onFresh(func(_ idem.Request, out *idem.Outcome) { granted.set(out.Claim.Token, out.Claim) })(b, cfg)
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if g := granted.get(c.Token); g.Token != 0 && len(c.Key) < 255 {
					c = g
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "an abandoned key keeps its fingerprint", row: "abandon/frees the key",
		also: []string{"complete/restores it whole"},
		inject: func(b *broken, _ idemtest.Config) {
			var abandoned notes[name, idem.Claim]
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				abandoned.set(nameOfClaim(c), c)
				return b.whole.Abandon(ctx, c)
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				c := abandoned.get(nameOf(req))
				if out.State == idem.Fresh && c.Token != 0 && c.Fingerprint != req.Fingerprint {
					return idem.Outcome{State: idem.Mismatch}, b.whole.Abandon(ctx, out.Claim)
				}
				return out, err
			}
		},
	}, {
		name: "abandoning again is an error", row: "abandon/when there is nothing to abandon",
		also: []string{"complete/restores it whole"},
		inject: func(b *broken, _ idemtest.Config) {
			var abandoned notes[uint64, int]
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if c.Token != 0 && count(&abandoned, c.Token) > 0 {
					return idem.ErrClaimLost
				}
				return b.whole.Abandon(ctx, c)
			}
		},
	}, {
		name: "Abandon does not look at the token", row: "abandon/lost",
		also: []string{"race/abandon and a new owner", "token/one that was not granted", "wait/new owner is like any other"},
		inject: func(b *broken, _ idemtest.Config) {
			b.abandon = func(ctx context.Context, c idem.Claim) error { return b.whole.Abandon(ctx, b.current(c)) }
		},
	}, {
		name: "Extend only makes longer", row: "extend/moves the end",
		also: []string{"lease/zero is the default", "wait/caps give back", "wait/extend moves the end"},
		inject: func(b *broken, cfg idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				rec := b.find(c.Scope, c.Key)
				current := rec.State == idem.InProgress && rec.Token == c.Token
				if d := orDefault(lease, cfg.Lease); current && d > 0 && rec.Remaining > d {
					return nil
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "a late Extend is refused", row: "extend/late",
		inject: func(b *broken, cfg idemtest.Config) {
			late := lateness(b, cfg)
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if late(c) {
					return idem.ErrClaimLost
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "Extend that brings a claim back has the store's lease", row: "complete/restores a record that is gone",
		also: []string{"extend/late"},
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if lease > 0 && b.find(c.Scope, c.Key).State == 0 {
					lease = 0
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "Extend that ends an unknown outcome is for ever", row: "hold/owner ends it",
		also: []string{"extend/late"},
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if lease > 0 && b.find(c.Scope, c.Key).State == idem.Unknown {
					lease = 1000 * time.Hour
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "Extend does not look at the token", row: "extend/lost",
		also: []string{"race/extend or a new owner", "token/one that was not granted", "wait/new owner is like any other"},
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				return b.whole.Extend(ctx, b.current(c), lease)
			}
		},
	}, {
		name: "Extend of what is done is fine", row: "extend/completed",
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if rec := b.find(c.Scope, c.Key); rec.State == idem.Replay && rec.Token == c.Token {
					return nil
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}}
}

// lateness tells of claims whether their lease has run out under TakeOver, unless it was tiny.
func lateness(b *broken, cfg idemtest.Config) func(idem.Claim) bool {
	var ends notes[uint64, time.Time]
	onFresh(func(req idem.Request, out *idem.Outcome) {
		if cfg.OnLeaseExpiry == idem.TakeOver && req.Lease > 30*time.Millisecond {
			ends.set(out.Claim.Token, time.Now().Add(out.Remaining))
		}
	})(b, cfg)
	return func(c idem.Claim) bool {
		end := ends.get(c.Token)
		return !end.IsZero() && !time.Now().Before(end) && b.find(c.Scope, c.Key).State == 0
	}
}

// current is the claim of whoever is in progress under c's key, c itself if nobody is.
func (b *broken) current(c idem.Claim) idem.Claim {
	if rec := b.find(c.Scope, c.Key); rec.State == idem.InProgress {
		c.Token = rec.Token
	}
	return c
}
