package idemtest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// raceFaults are about calls that meet.
func raceFaults() []fault {
	return []fault{{
		name: "Complete checks, then sets", row: "race/complete or a new owner",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if b.find(c.Scope, c.Key).State != 0 {
					return b.whole.Complete(ctx, c, resp)
				}
				time.Sleep(time.Microsecond)
				return b.whole.Complete(ctx, b.current(c), resp)
			}
		},
	}, {
		name: "Abandon checks, then deletes", row: "race/abandon and a new owner",
		inject: func(b *broken, _ idemtest.Config) {
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if c == (idem.Claim{}) || b.find(c.Scope, c.Key).State != 0 {
					return b.whole.Abandon(ctx, c)
				}
				time.Sleep(time.Microsecond)
				return b.whole.Abandon(ctx, b.current(c))
			}
		},
	}, {
		name: "Extend checks, then sets", row: "race/extend or a new owner",
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if b.find(c.Scope, c.Key).State != 0 {
					return b.whole.Extend(ctx, c, lease)
				}
				time.Sleep(time.Microsecond)
				return b.whole.Extend(ctx, b.current(c), lease)
			}
		},
	}, {
		name: "two Completes at once: the last one wins", row: "race/complete twice",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				rec := b.find(c.Scope, c.Key)
				if rec.State != idem.InProgress || rec.Token != c.Token {
					return b.whole.Complete(ctx, c, resp)
				}
				time.Sleep(time.Microsecond)
				if rec := b.find(c.Scope, c.Key); rec.State == idem.Replay && rec.Token == c.Token {
					b.mustForget(c.Scope, c.Key)
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "Resolve at the same time as Complete: both win", row: "race/resolve or complete",
		inject: func(b *broken, _ idemtest.Config) {
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				rec := b.find(scope, key)
				if rec.State != idem.InProgress && rec.State != idem.Unknown {
					return b.whole.Resolve(ctx, scope, key, resp)
				}
				time.Sleep(time.Microsecond)
				err := b.whole.Resolve(ctx, scope, key, resp)
				if errors.Is(err, idem.ErrNoClaim) {
					err = nil
				}
				return err
			}
		},
	}, {
		name: "Begin cut off keeps the claim", row: "context/cut off claims nothing",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if out.State != idem.Fresh || req.Wait {
					return out, err
				}
				time.Sleep(time.Microsecond) // the answer is on its way
				if ctx.Err() != nil {
					return idem.Outcome{}, context.Cause(ctx)
				}
				return out, err
			}
		},
	}, {
		name: "one duplicate in 3000 is Fresh, too", row: "claim/one racer is fresh", also: []string{"ttl/churn"}, inject: rarelyTwo,
	}}
}

// rarelyTwo: one duplicate in 3000 is told that it is the owner, under the owner's token.
func rarelyTwo(b *broken, cfg idemtest.Config) {
	var n atomic.Int64
	onOutcome(idem.InProgress, func(req idem.Request, out *idem.Outcome) {
		if n.Add(1)%3000 == 0 {
			rec := b.find(req.Scope, req.Key)
			c := idem.Claim{Scope: req.Scope, Key: req.Key, Token: rec.Token, Fingerprint: rec.Fingerprint}
			*out = idem.Outcome{State: idem.Fresh, Claim: c, Remaining: out.Remaining}
		}
	})(b, cfg)
}
