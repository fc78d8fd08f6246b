package idemtest_test

import (
	"context"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// recordFaults are about what is recorded.
func recordFaults() []fault {
	return []fault{{
		name: "TTL counts from the claim", row: "ttl/counts from Complete",
		inject: func(b *broken, _ idemtest.Config) {
			at := grants(b)
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if g := at.get(c.Token); resp.TTL > 0 && resp.TTL < time.Hour && !g.IsZero() {
					resp.TTL = max(1, resp.TTL-time.Since(g))
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "StoredAt is when the key was claimed", row: "replay/stored at",
		inject: func(b *broken, _ idemtest.Config) {
			var at notes[name, time.Time]
			onFresh(func(req idem.Request, _ *idem.Outcome) { at.set(nameOf(req), time.Now()) })(b, idemtest.Config{})
			storedAtOf(b, &at)
		},
	}, {
		name: "StoredAt in whole seconds", row: "replay/stored at",
		inject: func(b *broken, _ idemtest.Config) {
			onStoredAt(b, func(_ name, t time.Time) time.Time { return t.Truncate(time.Second) })
		},
	}, {
		name: "StoredAt of the caller kept", row: "replay/stored at",
		inject: func(b *broken, _ idemtest.Config) {
			var at notes[name, time.Time]
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if !resp.StoredAt.IsZero() {
					at.set(nameOfClaim(c), resp.StoredAt)
				}
				return b.whole.Complete(ctx, c, resp)
			}
			storedAtOf(b, &at)
		},
	}, {
		name: "restored record loses header and flags", row: "complete/restores it whole",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if b.find(c.Scope, c.Key).State == 0 {
					resp.Header, resp.Failed, resp.Status = nil, false, 200
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "restored record has the default TTL", row: "complete/restores it whole",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if b.find(c.Scope, c.Key).State == 0 && resp.TTL >= 0 {
					resp.TTL = 0
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "an abandoned claim that is not the last cannot be restored", row: "complete/restores it whole",
		inject: func(b *broken, cfg idemtest.Config) {
			var last notes[name, uint64]
			onFresh(func(req idem.Request, out *idem.Outcome) { last.set(nameOf(req), out.Claim.Token) })(b, cfg)
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if last.get(nameOfClaim(c)) > c.Token {
					return idem.ErrClaimLost
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "Status cut off at 32 bits", row: "replay/status of more than 32 bits",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) { resp.Status = int(int32(resp.Status)) }),
	}, {
		name: "keys compared by their first 200 bytes", row: "key/every byte counts",
		inject: renamed(func(n name) name { return name{n.scope, n.key[:min(len(n.key), 200)]} }),
	}, {
		name: "scopes compared by their first 64 bytes", row: "key/every byte counts",
		inject: renamed(func(n name) name { return name{n.scope[:min(len(n.scope), 64)], n.key} }),
	}, {
		name: "keys compared by CRC-32", row: "key/bytes are bytes",
		inject: renamed(func(n name) name {
			return name{n.scope, strconv.Itoa(int(crc32.ChecksumIEEE([]byte(n.key))))}
		}),
	}, {
		name: "Extend takes higher tokens", row: "token/one that was not granted",
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if cur := b.current(c); cur.Token < c.Token {
					c = cur
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}, {
		name: "Abandon takes higher tokens", row: "token/one that was not granted",
		inject: func(b *broken, _ idemtest.Config) {
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if cur := b.current(c); cur.Token < c.Token {
					c = cur
				}
				return b.whole.Abandon(ctx, c)
			}
		},
	}, {
		name: "deferred Abandon after the TTL is an error", row: "abandon/when there is nothing to abandon",
		inject: func(b *broken, _ idemtest.Config) {
			var done notes[uint64, bool]
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				done.set(c.Token, true)
				return b.whole.Complete(ctx, c, resp)
			}
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				err := b.whole.Abandon(ctx, c)
				if err == nil && done.get(c.Token) && b.find(c.Scope, c.Key).State == 0 {
					return idem.ErrClaimLost
				}
				return err
			}
		},
	}, {
		name: "deferred Abandon after Forget is an error", row: "abandon/when there is nothing to abandon", also: []string{"complete/restores it whole"},
		inject: func(b *broken, _ idemtest.Config) {
			var gone notes[uint64, bool]
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				gone.set(b.find(scope, key).Token, true)
				return b.whole.Forget(ctx, scope, key)
			}
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if gone.get(c.Token) {
					return idem.ErrClaimLost
				}
				return b.whole.Abandon(ctx, c)
			}
		},
	}}
}

// granted remembers when claims were granted, by token.
func grants(b *broken) *notes[uint64, time.Time] {
	var at notes[uint64, time.Time]
	begin := b.begin
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		out, err := begin(ctx, req)
		if out.State == idem.Fresh {
			at.set(out.Claim.Token, time.Now())
		}
		return out, err
	}
	return &at
}

// onStoredAt changes StoredAt wherever it is seen.
func onStoredAt(b *broken, change func(n name, at time.Time) time.Time) {
	begin, lookup := b.begin, b.lookup
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		out, err := begin(ctx, req)
		if out.State == idem.Replay {
			out.Response.StoredAt = change(nameOf(req), out.Response.StoredAt)
		}
		return out, err
	}
	b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
		rec, found, err := lookup(ctx, scope, key)
		if rec.State == idem.Replay {
			rec.Response.StoredAt = change(name{scope, key}, rec.Response.StoredAt)
			rec.Since = rec.Response.StoredAt
		}
		return rec, found, err
	}
}

// storedAtOf replaces StoredAt by what was noted.
func storedAtOf(b *broken, at *notes[name, time.Time]) {
	onStoredAt(b, func(n name, t time.Time) time.Time {
		if noted := at.get(n); !noted.IsZero() {
			return noted
		}
		return t
	})
}
