package idemtest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

func tokenFaults() []fault {
	var stores atomic.Uint64
	return []fault{{
		name: "tokens go back after Abandon", row: "token/grows with every claim",
		also: []string{"wait/new owner is like any other"},
		inject: func(b *broken, cfg idemtest.Config) {
			var abandoned notes[name, int]
			retoken(func(n name, token uint64) uint64 {
				return token - uint64(abandoned.get(n))<<20
			})(b, cfg)
			abandon := b.abandon
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				count(&abandoned, nameOfClaim(c))
				return abandon(ctx, c)
			}
		},
	}, {
		name: "tokens go back after Forget", row: "token/grows through forget",
		also: []string{"wait/new owner is like any other"},
		inject: func(b *broken, cfg idemtest.Config) {
			var forgotten notes[name, int]
			retoken(func(n name, token uint64) uint64 {
				return token - uint64(forgotten.get(n))<<20
			})(b, cfg)
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				count(&forgotten, name{scope, key})
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "tokens go back through a restart", row: "token/grows through a restart",
		inject: func(b *broken, cfg idemtest.Config) {
			before := stores.Add(1)
			retoken(func(_ name, token uint64) uint64 { return token - before<<20 })(b, cfg)
		},
	}, {
		name: "tokens counted per key", row: "token/never used twice",
		inject: func(b *broken, cfg idemtest.Config) {
			var claims notes[name, int]
			var first atomic.Uint64
			retoken(func(n name, token uint64) uint64 {
				first.CompareAndSwap(0, token)
				return first.Load() + uint64(count(&claims, n))
			})(b, cfg)
		},
	}}
}

// retoken shows other tokens than the store within grants.
func retoken(show func(name, uint64) uint64) func(*broken, idemtest.Config) {
	type key struct {
		name
		token uint64
	}
	return func(b *broken, cfg idemtest.Config) {
		var within, shown notes[key, uint64]
		granted := func(c idem.Claim) idem.Claim {
			if token := within.get(key{nameOfClaim(c), c.Token}); token != 0 {
				c.Token = token
			}
			return c
		}
		onFresh(func(_ idem.Request, out *idem.Outcome) {
			n, token := nameOfClaim(out.Claim), out.Claim.Token
			out.Claim.Token = show(n, token)
			within.set(key{n, out.Claim.Token}, token)
			shown.set(key{n, token}, out.Claim.Token)
		})(b, cfg)
		b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
			return b.whole.Complete(ctx, granted(c), resp)
		}
		b.abandon = func(ctx context.Context, c idem.Claim) error { return b.whole.Abandon(ctx, granted(c)) }
		b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
			return b.whole.Extend(ctx, granted(c), lease)
		}
		b.lookup = func(ctx context.Context, scope, k string) (idem.Record, bool, error) {
			rec, found, err := b.whole.Lookup(ctx, scope, k)
			if found {
				rec.Token = shown.get(key{name{scope, k}, rec.Token})
			}
			return rec, found, err
		}
	}
}

func limitFaults() []fault {
	return []fault{{
		name: "a response that is too large frees the key", row: "limit/response",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				err := b.whole.Complete(ctx, c, resp)
				if errors.Is(err, idem.ErrTruncated) {
					b.mustForget(c.Scope, c.Key)
				}
				return err
			}
		},
	}, {
		name: "a full store evicts", row: "limit/records",
		inject: func(b *broken, _ idemtest.Config) {
			done := make(chan name, 1000)
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				select {
				case done <- nameOfClaim(c):
				default:
				}
				return b.whole.Complete(ctx, c, resp)
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				for errors.Is(err, idem.ErrFull) && len(done) > 0 {
					oldest := <-done
					b.mustForget(oldest.scope, oldest.key)
					out, err = b.whole.Begin(ctx, req)
				}
				return out, err
			}
		},
	}}
}

// roomFaults are about what is gone and keeps its room. Its store counts on its own: lost tells how much never comes back.
func roomFaults() []fault {
	full := func(b *broken, cfg idemtest.Config, lost *atomic.Int64) {
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			if most := cfg.MaxRecords; most > 0 && lost.Load() >= int64(most) && b.find(req.Scope, req.Key).State == 0 {
				return idem.Outcome{}, idem.ErrFull
			}
			return b.whole.Begin(ctx, req)
		}
	}
	return []fault{{
		name: "a key that was abandoned keeps its room", row: "limit/records",
		inject: func(b *broken, cfg idemtest.Config) {
			var lost atomic.Int64
			full(b, cfg, &lost)
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				if b.find(c.Scope, c.Key).State == idem.InProgress {
					lost.Add(1)
				}
				return b.whole.Abandon(ctx, c)
			}
		},
	}, {
		name: "a key that was forgotten keeps its room", row: "limit/records",
		inject: func(b *broken, cfg idemtest.Config) {
			var lost atomic.Int64
			full(b, cfg, &lost)
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				lost.Add(1)
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "a response that is too large has the store's TTL", row: "limit/response",
		inject: func(b *broken, cfg idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if most := cfg.MaxResponseBytes; most > 0 && len(resp.Header)+len(resp.Body) > most {
					resp.TTL = 0
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}}
}

func inspectFaults() []fault {
	return []fault{{
		name: "Lookup does not know since when", row: "inspect/lookup",
		also: []string{"hold/lookup", "inspect/resolve records as Complete does", "inspect/since"},
		inject: func(b *broken, _ idemtest.Config) {
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				rec.Since = time.Time{}
				return rec, found, err
			}
		},
	}, {
		name: "Forget always found something", row: "inspect/forget",
		also: []string{"inspect/what is over"},
		inject: func(b *broken, _ idemtest.Config) {
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				_, err := b.whole.Forget(ctx, scope, key)
				return err == nil, err
			}
		},
	}, {
		name: "Resolve of what is not there is fine", row: "inspect/resolve",
		also: []string{"inspect/what is over", "race/resolve or complete"},
		inject: func(b *broken, _ idemtest.Config) {
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				if err := b.whole.Resolve(ctx, scope, key, resp); !errors.Is(err, idem.ErrNoClaim) {
					return err
				}
				return nil
			}
		},
	}}
}

func closeFaults() []fault {
	return []fault{{
		name: "a closed store goes on looking", row: "close/ends everything",
		inject: func(b *broken, _ idemtest.Config) {
			b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
				rec, found, err := b.whole.Lookup(ctx, scope, key)
				if errors.Is(err, idem.ErrClosed) {
					err = nil
				}
				return rec, found, err
			}
		},
	}, {
		name: "Close wakes nobody", row: "close/wakes all",
		inject: func(b *broken, _ idemtest.Config) {
			var closed atomic.Bool
			b.close = func() error {
				closed.Store(true)
				return b.whole.Close()
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				before := closed.Load()
				out, err := b.whole.Begin(ctx, req)
				if errors.Is(err, idem.ErrClosed) && !before {
					return hang(ctx)
				}
				return out, err
			}
		},
	}}
}
