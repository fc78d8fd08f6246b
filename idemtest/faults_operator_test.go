package idemtest_test

import (
	"context"
	"errors"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// operatorFaults are about operators.
func operatorFaults() []fault {
	return []fault{{
		name: "Since moved by Extend", row: "inspect/since",
		inject: func(b *broken, _ idemtest.Config) {
			var at notes[uint64, time.Time]
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				at.set(c.Token, time.Now())
				return b.whole.Extend(ctx, c, lease)
			}
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				if g := at.get(rec.Token); rec.State == idem.InProgress && !g.IsZero() {
					rec.Since = g
				}
				return rec, found, err
			}
		},
	}, {
		name: "Since stays through a take-over", row: "inspect/since",
		inject: func(b *broken, cfg idemtest.Config) {
			var at notes[name, time.Time]
			onFresh(func(req idem.Request, _ *idem.Outcome) {
				if at.get(nameOf(req)).IsZero() {
					at.set(nameOf(req), time.Now())
				}
			})(b, cfg)
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				if rec.State == idem.InProgress {
					rec.Since = at.get(name{scope, key})
				}
				return rec, found, err
			}
		},
	}, {
		name: "Lookup does not know of Extend", row: "inspect/since",
		inject: func(b *broken, cfg idemtest.Config) {
			var ends notes[uint64, time.Time]
			onFresh(func(_ idem.Request, out *idem.Outcome) {
				ends.set(out.Claim.Token, time.Now().Add(out.Remaining))
			})(b, cfg)
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				if rec.State == idem.InProgress && !ends.get(rec.Token).IsZero() {
					rec.Remaining = time.Until(ends.get(rec.Token))
				}
				return rec, found, err
			}
		},
	}, {
		name: "Lookup of Unknown lacks token and fingerprint", row: "hold/lookup",
		inject: func(b *broken, _ idemtest.Config) {
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				if rec.State == idem.Unknown {
					rec.Token, rec.Fingerprint, rec.Since = 0, idem.Fingerprint{}, time.Time{}
				}
				return rec, found, err
			}
		},
	}, {
		name: "Forget of what has expired says true", row: "inspect/what is over", inject: forgetExpired,
	}, {
		name: "Resolve ignores the TTL", row: "inspect/resolve records as Complete does",
		inject: func(b *broken, _ idemtest.Config) {
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				if resp.TTL > 0 {
					resp.TTL = 0
				}
				return b.whole.Resolve(ctx, scope, key, resp)
			}
		},
	}, {
		name: "Resolve keeps the caller's bytes", row: "inspect/resolve records as Complete does",
		inject: func(b *broken, cfg idemtest.Config) {
			var kept notes[name, *idem.Response]
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				err := b.whole.Resolve(ctx, scope, key, resp)
				if err == nil {
					kept.set(name{scope, key}, &resp)
				}
				return err
			}
			onOutcome(idem.Replay, func(req idem.Request, out *idem.Outcome) {
				if resp := kept.get(nameOf(req)); resp != nil && req.Buf == nil {
					out.Response.Header, out.Response.Body = resp.Header, resp.Body
				}
			})(b, cfg)
		},
	}, {
		name: "Lookup loses the flags", row: "inspect/resolve records as Complete does",
		inject: func(b *broken, _ idemtest.Config) {
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				rec.Response.Failed, rec.Response.Truncated = false, false
				return rec, found, err
			}
		},
	}, {
		name: "Resolve refuses what is too large", row: "limit/response of Resolve",
		inject: func(b *broken, cfg idemtest.Config) {
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				if cfg.MaxResponseBytes > 0 && len(resp.Header)+len(resp.Body) > cfg.MaxResponseBytes {
					return errors.New("too large")
				}
				return b.whole.Resolve(ctx, scope, key, resp)
			}
		},
	}}
}

func forgetExpired(b *broken, cfg idemtest.Config) {
	var had notes[name, bool]
	onFresh(func(req idem.Request, _ *idem.Outcome) { had.set(nameOf(req), true) })(b, cfg)
	b.abandon = func(ctx context.Context, c idem.Claim) error {
		err := b.whole.Abandon(ctx, c)
		if b.find(c.Scope, c.Key).State == 0 {
			had.drop(nameOfClaim(c))
		}
		return err
	}
	b.forget = func(ctx context.Context, scope, key string) (bool, error) {
		found, err := b.whole.Forget(ctx, scope, key)
		if had.get(name{scope, key}) && err == nil {
			found = true
		}
		had.drop(name{scope, key})
		return found, err
	}
}
