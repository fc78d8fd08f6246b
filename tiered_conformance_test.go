package idem_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// tierOver makes a tiered store over remote, as one process has it.
func tierOver(tb testing.TB, remote idem.Store, cfg idemtest.Config, ttl time.Duration) *idem.TieredStore {
	tb.Helper()
	return idem.Tiered(openEngine(tb, idem.Config{
		TTL: ttl, MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey,
	}), remote)
}

// tieredMaker makes tiered stores over an engine. Responses stay in the local one for ttl.
func tieredMaker(ttl time.Duration) idemtest.Maker {
	engines := engineMaker()
	return idemtest.Maker{
		New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
			tb.Helper()
			return tierOver(tb, engines.New(tb, cfg), cfg, ttl)
		},
		Unsupported: idemtest.Closer, // it has nothing of its own to close
	}
}

// processes are several tiered stores over one remote, which take turns to be called.
type processes struct {
	tiers []*idem.TieredStore
	turn  atomic.Uint32
}

func (p *processes) next() *idem.TieredStore { return p.tiers[p.turn.Add(1)%uint32(len(p.tiers))] }

func (p *processes) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	return p.next().Begin(ctx, req)
}

func (p *processes) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	return p.next().Complete(ctx, c, resp)
}

func (p *processes) Abandon(ctx context.Context, c idem.Claim) error { return p.next().Abandon(ctx, c) }

func (p *processes) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	return p.next().Extend(ctx, c, lease)
}

// processesMaker makes three processes. What one forgets another may still replay, so they are no Inspector;
// and each caps its own waiters.
func processesMaker() idemtest.Maker {
	engines := engineMaker()
	return idemtest.Maker{
		New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
			tb.Helper()
			remote := engines.New(tb, cfg)
			p := &processes{}
			for range 3 {
				p.tiers = append(p.tiers, tierOver(tb, remote, cfg, time.Minute))
			}
			return p
		},
		Unsupported: idemtest.Closer | idemtest.Inspector | idemtest.MaxWaiters | idemtest.MaxWaitersPerKey,
	}
}

// tieredMakers are the makers of tiered stores. A local TTL of a nanosecond is one in which everything has just ended.
var tieredMakers = map[string]func() idemtest.Maker{
	"a minute":     func() idemtest.Maker { return tieredMaker(time.Minute) },
	"a nanosecond": func() idemtest.Maker { return tieredMaker(1) },
	"processes":    processesMaker,
}

func TestTieredConformance(t *testing.T) { idemtest.Run(t, tieredMaker(time.Minute)) }

func TestHeavyTieredConformanceToTheNanosecond(t *testing.T) {
	for name, maker := range tieredMakers {
		for _, row := range idemtest.Rows() {
			t.Run(name+"/"+row.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { row.Run(t, maker()) })
			})
		}
	}
}
