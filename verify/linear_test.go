package verify_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

// histories is how many each setting gets. What is plainly broken shows in the first hundred;
// `make soak` asks for more to find the rare.
var histories = flag.Int("histories", 200, "linearizability histories per setting")

const (
	// handed is the engine's default lease, and unlike every lease that is asked for.
	handed = 2 * time.Hour

	// workers record and check histories side by side: most of a history's time is spent in waiting.
	workers = 4

	// rounds is how often a setting's histories are recorded for the sake of cases that have not come up.
	rounds = 20
)

// A setting is an engine and the workload that it gets. One shard makes all clients meet at one lock;
// one key makes them meet at one record.
type setting struct {
	policy       idem.LeasePolicy
	shards, keys int
	lives        []time.Duration // leases and TTLs
}

func (s setting) String() string {
	lives := "nothing ends"
	if s.lives != nil {
		lives = "leases end"
	}
	return fmt.Sprintf("%s, %d shards, %d keys, %s", nameOf(s.policy), s.shards, s.keys, lives)
}

func nameOf(p idem.LeasePolicy) string {
	if p == idem.Hold {
		return "hold"
	}
	return "take over"
}

func settings() []setting {
	short := []time.Duration{time.Nanosecond, 2 * time.Microsecond, 20 * time.Microsecond, 100 * time.Microsecond, time.Hour}
	var all []setting
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		for _, lives := range [][]time.Duration{nil, short} {
			all = append(all, setting{policy, 1, 3, lives}, setting{policy, 4, 3, lives}, setting{policy, 1, 1, lives})
		}
	}
	return all
}

func TestEngineIsLinearizable(t *testing.T) { checkSettings(t, *histories) }

func TestHeavyEngineIsLinearizable(t *testing.T) { checkSettings(t, 5*(*histories)) }

func checkSettings(t *testing.T, n int) {
	t.Helper()
	for _, s := range settings() {
		t.Run(s.String(), func(t *testing.T) {
			e := newEngine(t, s)
			checkKinds(t, s.kinds(), func(round int) (map[string]int, error) { return record(e, s, round*n, n) })
		})
	}
}

// checkKinds lets record check the histories of one round after the other until all kinds of event have come up, since a
// case that never does is not checked. On an idle machine they do in the first; how calls fall together on a busy one is
// the machine's affair.
func checkKinds(t *testing.T, all []string, record func(round int) (map[string]int, error)) {
	t.Helper()
	missing := slices.Clone(all)
	for round := 0; round < rounds && len(missing) > 0; round++ {
		kinds, err := record(round)
		require.NoError(t, err)
		missing = slices.DeleteFunc(missing, func(kind string) bool { return kinds[kind] > 0 })
	}
	require.Empty(t, missing, "these have not come up in %d rounds", rounds)
}

func newEngine(t *testing.T, s setting) *idem.Engine {
	t.Helper()
	e, err := idem.New(idem.Config{Shards: s.shards, OnLeaseExpiry: s.policy, Lease: handed})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// record checks n histories of the store, with numbers from first on that no others have, up to the first that is illegal,
// and counts the kinds of their events.
func record(store lin.Store, s setting, first, n int) (map[string]int, error) {
	var mu sync.Mutex
	kinds := map[string]int{}
	model := lin.Model{Policy: s.policy, Lease: handed}
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(workers)
	for i := first; i < first+n; i++ {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err() // another has found it; Wait returns what it found
			}
			w := lin.Workload{Scope: fmt.Sprint("history ", i), Seed: uint64(i), Keys: s.keys, Leases: s.lives, TTLs: s.lives}
			history := w.Record(store)
			mu.Lock()
			for _, e := range history {
				kinds[e.Kind()]++
			}
			mu.Unlock()
			return model.Check(history)
		})
	}
	return kinds, group.Wait()
}

// kinds returns every kind of event that the setting makes possible.
func (s setting) kinds() []string {
	lost, none, late := idem.ErrClaimLost.Error(), idem.ErrNoClaim.Error(), context.DeadlineExceeded.Error()
	kinds := []string{
		"Begin: fresh", "Begin: in progress", "Begin: replay", "Begin: mismatch",
		"Begin and wait: fresh", "Begin and wait: replay", "Begin and wait: mismatch", "Begin and wait: " + late,
		"Complete: ok", "Complete: " + lost, "Abandon: ok", "Abandon: " + lost, "Extend: ok", "Extend: " + lost,
		"Lookup: nothing", "Lookup: in progress", "Lookup: replay",
		"Forget: nothing", "Forget: ok", "Resolve: ok", "Resolve: " + none,
	}
	if s.policy == idem.Hold && s.lives != nil {
		kinds = append(kinds, "Begin: unknown", "Begin and wait: unknown", "Lookup: unknown")
	}
	return kinds
}

// A tokenless store is an engine that forgot to compare tokens: whoever completes is taken for the owner.
type tokenless struct{ *idem.Engine }

func (s tokenless) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if r, found, err := s.Lookup(ctx, c.Scope, c.Key); err == nil && found {
		c.Token = r.Token
	}
	return s.Engine.Complete(ctx, c, resp)
}

// An impatient store is an engine whose waiters take the key from its owner when they give up.
type impatient struct{ *idem.Engine }

func (s impatient) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	out, err := s.Engine.Begin(ctx, req)
	if err != nil {
		_, _ = s.Forget(context.WithoutCancel(ctx), req.Scope, req.Key)
	}
	return out, err
}

func TestFaultyEngineIsNotLinearizable(t *testing.T) {
	for _, s := range settings() {
		e := newEngine(t, s)
		for name, store := range map[string]lin.Store{"tokens not compared": tokenless{e}, "waiters take over": impatient{e}} {
			t.Run(s.String()+"/"+name, func(t *testing.T) {
				_, err := record(store, s, 0, 300)
				require.ErrorIs(t, err, lin.ErrIllegal)
			})
		}
	}
}
