package idemtest_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

func waitFaults() []fault {
	return []fault{{
		name: "ten waiters woken at most", row: "wait/complete wakes all",
		inject: func(b *broken, cfg idemtest.Config) {
			var woken notes[name, int]
			onWoken(func(ctx context.Context, req idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if out.State == idem.Replay && count(&woken, nameOf(req)) >= 10 {
					return hang(ctx)
				}
				return out, nil
			})(b, cfg)
		},
	}, {
		name: "all waiters woken by Abandon", row: "wait/abandon wakes one",
		also:   []string{"wait/caps give back", "wait/first come first served", "wait/giving up passes the claim on", "wait/no wake-up is lost"},
		inject: abandonWakesAll,
	}, {
		name: "no timer at the lease's end", row: "wait/end of the lease wakes one",
		also: []string{"wait/caps give back"},
		inject: func(b *broken, cfg idemtest.Config) {
			var waits, freed notes[name, int]
			onWoken(func(ctx context.Context, req idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if out.State == idem.Fresh && freed.get(nameOf(req)) == 0 && waits.get(nameOf(req)) > 1 {
					return hang(ctx)
				}
				return out, nil
			})(b, cfg)
			begin := b.begin
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				if req.Wait {
					count(&waits, nameOf(req))
				}
				return begin(ctx, req)
			}
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				count(&freed, nameOfClaim(c))
				return b.whole.Abandon(ctx, c)
			}
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				count(&freed, name{scope, key})
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "Forget wakes nobody", row: "wait/forget wakes one",
		also: []string{"wait/new owner is like any other"},
		inject: func(b *broken, cfg idemtest.Config) {
			var forgotten notes[name, bool]
			onWoken(func(ctx context.Context, req idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if out.State == idem.Fresh && forgotten.get(nameOf(req)) {
					return hang(ctx)
				}
				return out, nil
			})(b, cfg)
			b.forget = func(ctx context.Context, scope, key string) (bool, error) {
				forgotten.set(name{scope, key}, true)
				return b.whole.Forget(ctx, scope, key)
			}
		},
	}, {
		name: "Resolve wakes nobody", row: "wait/resolve wakes all",
		inject: func(b *broken, cfg idemtest.Config) {
			var resolved notes[name, bool]
			onWoken(func(ctx context.Context, req idem.Request, out idem.Outcome) (idem.Outcome, error) {
				if resolved.get(nameOf(req)) {
					return hang(ctx)
				}
				return out, nil
			})(b, cfg)
			b.resolve = func(ctx context.Context, scope, key string, resp idem.Response) error {
				resolved.set(name{scope, key}, true)
				return b.whole.Resolve(ctx, scope, key, resp)
			}
		},
	}, {
		name: "last come first served", row: "wait/first come first served",
		inject: lastComeFirstServed,
	}, {
		name: "waiters go by the lease as it was", row: "wait/extend moves the end",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				rec := b.find(req.Scope, req.Key)
				if !req.Wait || rec.State != idem.InProgress || rec.Remaining > time.Second {
					return b.whole.Begin(ctx, req)
				}
				over := errors.New("the lease is over")
				short, cancel := context.WithTimeoutCause(ctx, rec.Remaining+time.Millisecond, over)
				defer cancel()
				out, err := b.whole.Begin(short, req)
				if errors.Is(err, over) && b.find(req.Scope, req.Key).Token == rec.Token {
					return idem.Outcome{State: idem.InProgress, Remaining: 1}, nil
				}
				if errors.Is(err, over) {
					return b.whole.Begin(ctx, req)
				}
				return out, err
			}
		},
	}, {
		name: "an abandoned key is waited for", row: "wait/only for an owner", also: []string{"wait/no wake-up is lost"},
		inject: func(b *broken, _ idemtest.Config) {
			var abandoned notes[name, bool]
			b.abandon = func(ctx context.Context, c idem.Claim) error {
				abandoned.set(nameOfClaim(c), true)
				return b.whole.Abandon(ctx, c)
			}
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				if req.Wait && abandoned.get(nameOf(req)) && b.find(req.Scope, req.Key).State == 0 {
					return hang(ctx)
				}
				return b.whole.Begin(ctx, req)
			}
		},
	}}
}

// onWoken changes what callers are told that have waited.
func onWoken(
	change func(context.Context, idem.Request, idem.Outcome) (idem.Outcome, error),
) func(*broken, idemtest.Config) {
	return func(b *broken, _ idemtest.Config) {
		b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
			waits := req.Wait && b.find(req.Scope, req.Key).State == idem.InProgress
			out, err := b.whole.Begin(ctx, req)
			if waits && err == nil {
				return change(ctx, req, out)
			}
			return out, err
		}
	}
}

// abandonWakesAll has those who did not get an abandoned claim look again, and give up.
func abandonWakesAll(b *broken, _ idemtest.Config) {
	var abandoned notes[name, bool]
	var mu sync.Mutex
	waiting := map[name][]context.CancelCauseFunc{}
	woken := errors.New("woken")
	b.abandon = func(ctx context.Context, c idem.Claim) error {
		abandoned.set(nameOfClaim(c), true)
		return b.whole.Abandon(ctx, c)
	}
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		if !req.Wait || ctx == nil {
			return b.whole.Begin(ctx, req)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		n := nameOf(req)
		mu.Lock()
		waiting[n] = append(waiting[n], cancel)
		mu.Unlock()
		out, err := b.whole.Begin(ctx, req)
		if errors.Is(err, woken) {
			return idem.Outcome{State: idem.InProgress, Remaining: 1}, nil
		}
		if out.State == idem.Fresh && abandoned.get(n) {
			mu.Lock()
			defer mu.Unlock()
			for _, cancel := range waiting[n] {
				cancel(woken)
			}
		}
		return out, err
	}
}

// lastComeFirstServed waits by looking again and again, and lets only who came last have a free key.
func lastComeFirstServed(b *broken, cfg idemtest.Config) {
	var mu sync.Mutex
	var all int
	waiting := map[name][]int{}
	push := func(n name) (me int, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		mostPerKey := orDefault(cfg.MaxWaitersPerKey, math.MaxInt)
		if all >= orDefault(cfg.MaxWaiters, math.MaxInt) || len(waiting[n]) >= mostPerKey {
			return 0, false
		}
		all++
		me = rand.Int()
		waiting[n] = append(waiting[n], me)
		return me, true
	}
	remove := func(n name, me int) {
		mu.Lock()
		defer mu.Unlock()
		all--
		waiting[n] = slices.DeleteFunc(waiting[n], func(id int) bool { return id == me })
	}
	last := func(n name, me int) bool {
		mu.Lock()
		defer mu.Unlock()
		return waiting[n][len(waiting[n])-1] == me
	}
	b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
		n, wait := nameOf(req), req.Wait
		req.Wait = false
		out, err := b.whole.Begin(ctx, req)
		if !wait || out.State != idem.InProgress {
			return out, err
		}
		me, ok := push(n)
		if !ok {
			return out, err
		}
		defer remove(n, me)
		for out.State == idem.InProgress && err == nil {
			select {
			case <-ctx.Done():
				return idem.Outcome{}, context.Cause(ctx)
			case <-time.After(time.Millisecond):
			}
			if s := b.find(req.Scope, req.Key).State; s != 0 && s != idem.InProgress || s == 0 && last(n, me) {
				out, err = b.whole.Begin(ctx, req)
			}
		}
		return out, err
	}
}

func crowdFaults() []fault {
	return []fault{{
		name: "a waiter that gives up takes the record along", row: "wait/giving up changes nothing",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if err != nil && ctx != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
					b.mustForget(req.Scope, req.Key)
				}
				return out, err
			}
		},
	}, {
		name: "owner's context ends its claim", row: "wait/owner's context means nothing",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if out.State == idem.Fresh && !req.Wait {
					// Contexts with a deadline are those that the suite ends when Begin has returned.
					if _, limited := ctx.Deadline(); !limited {
						context.AfterFunc(ctx, func() { _ = b.whole.Abandon(context.Background(), out.Claim) })
					}
				}
				return out, err
			}
		},
	}, {
		name: "claim dropped by a waiter that gives up", row: "wait/giving up passes the claim on",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				out, err := b.whole.Begin(ctx, req)
				if !req.Wait || out.State != idem.Fresh {
					return out, err
				}
				time.Sleep(time.Nanosecond) // as long as the claim is on its way
				if ctx.Err() != nil {
					return idem.Outcome{}, context.Cause(ctx)
				}
				return out, err
			}
		},
	}, {
		name: "look, then subscribe", row: "wait/no wake-up is lost",
		inject: func(b *broken, _ idemtest.Config) {
			b.begin = func(ctx context.Context, req idem.Request) (idem.Outcome, error) {
				if !req.Wait || b.find(req.Scope, req.Key).State != idem.InProgress {
					return b.whole.Begin(ctx, req)
				}
				runtime.Gosched()
				if b.find(req.Scope, req.Key).State != idem.InProgress {
					return hang(ctx)
				}
				return b.whole.Begin(ctx, req)
			}
		},
	}, {
		name: "no cap per key", row: "wait/cap per key",
		config: func(cfg *idemtest.Config) { cfg.MaxWaitersPerKey = 0 },
	}, {
		name: "no cap in all", row: "wait/cap in all",
		config: func(cfg *idemtest.Config) { cfg.MaxWaiters = 0 },
	}}
}
