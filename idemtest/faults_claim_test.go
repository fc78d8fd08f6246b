package idemtest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

func claimFaults() []fault {
	return []fault{{
		name: "check, then set", row: "claim/one racer is fresh",
		also: []string{"race/extend or a new owner", "ttl/churn"},
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				if req.Wait || req.Lease < 0 || ctx == nil || b.find(req.Scope, req.Key).State != 0 {
					return b.whole.Begin(ctx, req)
				}
				time.Sleep(time.Microsecond)
				out, err := b.whole.Begin(ctx, req)
				for err == nil && out.State == idem.InProgress {
					b.mustForget(req.Scope, req.Key)
					out, err = b.whole.Begin(ctx, req)
				}
				return out, err
			}
		},
	}, {
		name: "lease granted in whole minutes", row: "claim/fresh carries the claim",
		inject: onFresh(func(_ idem.Request, out *idem.Outcome) {
			if out.Remaining > time.Minute {
				out.Remaining = out.Remaining.Truncate(time.Minute)
			}
		}),
	}, {
		name: "lease left rounded up", row: "claim/in progress tells the lease left",
		inject: onOutcome(idem.InProgress, func(_ idem.Request, out *idem.Outcome) {
			if d := out.Remaining.Truncate(time.Minute); d > 0 && d < 24*time.Hour && d != out.Remaining {
				out.Remaining = d + time.Minute
			}
		}),
	}, {
		name: "fingerprint compared only when done", row: "fingerprint/in progress",
		inject: func(b *broken, cfg idemtest.Config) {
			onOutcome(idem.Mismatch, func(req idem.Request, out *idem.Outcome) {
				if rec := b.find(req.Scope, req.Key); rec.State == idem.InProgress {
					out.State, out.Remaining = rec.State, rec.Remaining
				}
			})(b, cfg)
		},
	}, {
		name: "local cache in front of the fingerprint", row: "fingerprint/done",
		inject: func(b *broken, cfg idemtest.Config) {
			var looked notes[name, int]
			onOutcome(idem.Mismatch, func(req idem.Request, out *idem.Outcome) {
				rec := b.find(req.Scope, req.Key)
				if rec.State == idem.Replay && count(&looked, nameOf(req)) > 0 {
					out.State, out.Response = rec.State, rec.Response
				}
			})(b, cfg)
		},
	}, {
		name: "context looked at after the claim", row: "context/done claims nothing",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				if ctx != nil && ctx.Err() != nil {
					req.Wait = false
					_, err := b.whole.Begin(context.WithoutCancel(ctx), req)
					return idem.Outcome{}, errors.Join(err, context.Cause(ctx))
				}
				return b.whole.Begin(ctx, req)
			}
		},
	}, {
		name: "nil context for one that never ends", row: "context/nil is refused",
		inject: func(b *broken, _ idemtest.Config) {
			b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
				if ctx == nil {
					ctx = context.Background()
				}
				return b.whole.Extend(ctx, c, lease)
			}
		},
	}}
}

// onOutcome changes what Begin answers when it has found a state.
func onOutcome(s idem.State, change func(idem.Request, *idem.Outcome)) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			out, err := b.whole.Begin(ctx, req)
			if err == nil && out.State == s {
				change(req, &out)
			}
			return out, err
		}
	}
}

func onFresh(change func(idem.Request, *idem.Outcome)) func(*broken, idemtest.Config) {
	return onOutcome(idem.Fresh, change)
}

func keyFaults() []fault {
	return []fault{{
		name: "long keys cut off", row: "key/length",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				req.Key = req.Key[:min(len(req.Key), 255)]
				return b.whole.Begin(ctx, req)
			}
		},
	}, {
		name: "claims taken as they come", row: "key/length of a claim",
		inject: func(b *broken, _ idemtest.Config) {
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if len(c.Key) > 255 {
					return idem.ErrClaimLost
				}
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}, {
		name: "keys without regard to case", row: "key/bytes are bytes",
		also:   []string{"wait/keys are apart"},
		inject: renamed(func(n name) name { return name{n.scope, strings.ToLower(n.key)} }),
	}, {
		name: "scope and key joined", row: "key/scopes are apart",
		inject: renamed(func(n name) name {
			sum := sha256.Sum256([]byte(n.scope + ":" + n.key))
			return name{"", string(sum[:])}
		}),
	}, {
		name: "response kept in a shared place", row: "key/each has its own record",
		inject: func(b *broken, _ idemtest.Config) {
			var mu sync.Mutex
			var place idem.Response
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				mu.Lock()
				place = resp
				mu.Unlock()
				if strings.Contains(c.Key, " of ") {
					time.Sleep(time.Microsecond)
				}
				mu.Lock()
				resp = place
				mu.Unlock()
				return b.whole.Complete(ctx, c, resp)
			}
		},
	}}
}

// renamed keeps records under other names than they are asked for.
func renamed(to func(name) name) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		// Lengths are looked at before.
		as := func(scope, key string) (string, string) {
			if key == "" || len(key) > 255 || len(scope) > 255 {
				return scope, key
			}
			n := to(name{scope, key})
			return n.scope, n.key
		}
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			n := nameOf(req)
			req.Scope, req.Key = as(req.Scope, req.Key)
			out, err := b.whole.Begin(ctx, req)
			if out.State == idem.Fresh {
				out.Claim.Scope, out.Claim.Key = n.scope, n.key
			}
			return out, err
		}
		b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
			c.Scope, c.Key = as(c.Scope, c.Key)
			return b.whole.Complete(ctx, c, resp)
		}
		b.abandon = func(ctx context.Context, c idem.Claim) error {
			c.Scope, c.Key = as(c.Scope, c.Key)
			return b.whole.Abandon(ctx, c)
		}
		b.extend = func(ctx context.Context, c idem.Claim, lease time.Duration) error {
			c.Scope, c.Key = as(c.Scope, c.Key)
			return b.whole.Extend(ctx, c, lease)
		}
		b.lookup = func(ctx context.Context, scope, key string) (idem.Record, bool, error) {
			s, k := as(scope, key)
			rec, found, err := b.whole.Lookup(ctx, s, k)
			if found {
				rec.Scope, rec.Key = scope, key
			}
			return rec, found, err
		}
		b.forget = func(ctx context.Context, scope, key string) (bool, error) {
			scope, key = as(scope, key)
			return b.whole.Forget(ctx, scope, key)
		}
		b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
			scope, key = as(scope, key)
			return b.whole.Resolve(ctx, scope, key, resp)
		}
	}
}

func replayFaults() []fault {
	return []fault{{
		name: "body kept as text", row: "replay/byte for byte",
		also: []string{"wait/replay is whole"},
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
			resp.Body = []byte(strings.ToValidUTF8(string(resp.Body), "\ufffd"))
		}),
	}, {
		name: "slices shared", row: "replay/bytes are copies",
		also: []string{"race/complete twice"}, // the slices noted last are those of the second, now and then
		inject: func(b *broken, cfg idemtest.Config) {
			var shared notes[uint64, idem.Response]
			onComplete(func(c idem.Claim, resp *idem.Response) {
				if b.find(c.Scope, c.Key).State != idem.Replay {
					shared.set(c.Token, *resp)
				}
			})(b, cfg)
			onOutcome(idem.Replay, func(req idem.Request, out *idem.Outcome) {
				resp := shared.get(b.find(req.Scope, req.Key).Token)
				if len(resp.Body) > 0 && req.Buf == nil && !out.Response.Truncated {
					out.Response.Header, out.Response.Body = resp.Header, resp.Body
				}
			})(b, cfg)
		},
	}, {
		name: "buffer ignored", row: "replay/into a buffer",
		inject: onRequest(func(req *idem.Request) { req.Buf = nil }),
	}}
}

// onComplete changes what Complete is given.
func onComplete(change func(idem.Claim, *idem.Response)) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
			change(c, &resp)
			return b.whole.Complete(ctx, c, resp)
		}
	}
}

// onRequest changes what Begin is given.
func onRequest(change func(*idem.Request)) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			change(&req)
			return b.whole.Begin(ctx, req)
		}
	}
}

func lifeFaults() []fault {
	return []fault{{
		name: "TTL ends early", row: "ttl/exact",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
			if resp.TTL > 150*time.Millisecond && resp.TTL < time.Second {
				resp.TTL -= time.Millisecond
			}
		}),
	}, {
		name: "TTL refreshed by replays", row: "ttl/replays do not extend it",
		also: []string{"ttl/counts from Complete"},
		inject: func(b *broken, _ idemtest.Config) {
			type done struct {
				claim idem.Claim
				resp  idem.Response
			}
			var short notes[name, done]
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if resp.TTL > 100*time.Millisecond && resp.TTL < time.Second {
					short.set(nameOfClaim(c), done{c, resp})
				}
				return b.whole.Complete(ctx, c, resp)
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if d := short.get(nameOf(req)); out.State == idem.Replay && d.claim.Token != 0 {
					b.mustForget(req.Scope, req.Key)
					err = b.whole.Complete(ctx, d.claim, d.resp)
				}
				return out, err
			}
		},
	}, {
		name: "TTL zero for ever", row: "ttl/zero is the default",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
			if resp.TTL == 0 {
				resp.TTL = math.MaxInt64
			}
		}),
	}, {
		name: "TTL truncated to milliseconds", row: "ttl/tiny is not for ever",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
			if resp.TTL > 0 {
				resp.TTL = resp.TTL.Truncate(time.Millisecond)
			}
		}),
	}, {
		name: "TTL overflows", row: "ttl/huge saturates",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) {
			if resp.TTL > math.MaxInt64/2 {
				resp.TTL = 1
			}
		}),
	}, {
		name: "TTL below zero for zero", row: "ttl/negative is an error",
		inject: onComplete(func(_ idem.Claim, resp *idem.Response) { resp.TTL = max(resp.TTL, 0) }),
	}, {
		name: "lease's timer not stopped", row: "ttl/replaces the lease",
		also: []string{"race/complete or a new owner"}, // now and then
		inject: func(b *broken, cfg idemtest.Config) {
			onFresh(func(req idem.Request, out *idem.Outcome) {
				token := out.Claim.Token
				if req.Lease < 30*time.Millisecond || req.Lease > time.Second {
					return
				}
				time.AfterFunc(req.Lease, func() {
					if rec := b.find(req.Scope, req.Key); rec.State == idem.Replay && rec.Token == token {
						b.mustForget(req.Scope, req.Key)
					}
				})
			})(b, cfg)
		},
	}, {
		name: "failure outlives its record", row: "ttl/after its end",
		inject: func(b *broken, cfg idemtest.Config) {
			var failed notes[name, bool]
			onComplete(func(c idem.Claim, resp *idem.Response) {
				if resp.Failed {
					failed.set(nameOfClaim(c), true)
				}
			})(b, cfg)
			onOutcome(idem.Replay, func(req idem.Request, out *idem.Outcome) {
				out.Response.Failed = out.Response.Failed || failed.get(nameOf(req))
			})(b, cfg)
		},
	}, {
		name: "record gone between two looks", row: "ttl/churn",
		inject: func(b *broken, _ idemtest.Config) {
			var tiny notes[name, bool]
			b.complete = func(ctx context.Context, c idem.Claim, resp idem.Response) error {
				if resp.TTL == time.Millisecond {
					tiny.set(nameOfClaim(c), true)
				}
				return b.whole.Complete(ctx, c, resp)
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				rec := b.find(req.Scope, req.Key)
				if rec.State != idem.Replay || !tiny.get(nameOf(req)) {
					return b.whole.Begin(ctx, req)
				}
				time.Sleep(rec.Remaining)
				out, err := b.whole.Begin(ctx, req)
				if out.State == idem.Fresh {
					err = errors.Join(errors.New("record not found"), b.whole.Abandon(ctx, out.Claim))
				}
				return out, err
			}
		},
	}}
}
