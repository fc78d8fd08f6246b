package verify_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

const (
	// batch is how many histories are recorded at the same time. Most of a history's time is spent in waiting.
	batch = 10

	// grace is how long a store may hold a claim that nobody knows of. redisstore tries to give it up for 1.1 s, pgstore
	// for 2 s; on a machine with nothing to spare each may take a little longer.
	grace = 5 * time.Second

	// fleetLife is longer than any fleet takes. Processes that hang are ended then.
	fleetLife = 5 * time.Minute
)

// shares are the clients of each process.
var shares = []int{3, 3, 2}

// shortLives are leases and TTLs of which many end within a history. Calls take from 0.1 ms up to some ms.
var shortLives = []time.Duration{
	time.Nanosecond, 300 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 3500 * time.Microsecond, time.Hour,
}

func TestRedisStoreIsLinearizable(t *testing.T) { checkStore(t, "redis", *histories) }

func TestRueidisStoreIsLinearizable(t *testing.T) { checkStore(t, "rueidis", *histories) }

func TestPostgresStoreIsLinearizable(t *testing.T) { checkStore(t, "postgres", *histories) }

// TestTieredStoreIsLinearizable leaves Forget out: it is the one thing that other processes may be late to see.
func TestTieredStoreIsLinearizable(t *testing.T) { checkStore(t, "tiered", *histories, lin.Forget) }

func TestHeavyRedisStoreIsLinearizable(t *testing.T) { checkStore(t, "redis", 3*(*histories)) }

func TestHeavyRueidisStoreIsLinearizable(t *testing.T) { checkStore(t, "rueidis", 3*(*histories)) }

func TestHeavyPostgresStoreIsLinearizable(t *testing.T) { checkStore(t, "postgres", 3*(*histories)) }

func TestHeavyTieredStoreIsLinearizable(t *testing.T) {
	checkStore(t, "tiered", 3*(*histories), lin.Forget)
}

// checkStore checks n histories of a store: a quarter with each policy, with leases that end and without.
func checkStore(t *testing.T, store string, n int, without ...lin.Op) {
	t.Helper()
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		fleet := newFleet(t, plan{Store: store, Policy: policy})
		for _, lives := range [][]time.Duration{nil, shortLives} {
			s := setting{policy: policy, lives: lives}
			t.Run(fmt.Sprintf("%s, %s, %s", store, nameOf(policy), endings(lives)), func(t *testing.T) {
				checkKinds(t, possible(s, without), func(round int) (map[string]int, error) {
					return recordFleet(fleet, s, round*n/4, n/4, without...)
				})
			})
		}
	}
}

func endings(lives []time.Duration) string {
	if lives == nil {
		return "nothing ends"
	}
	return "leases end"
}

// possible returns every kind of event that a setting makes possible without some methods.
func possible(s setting, without []lin.Op) []string {
	return slices.DeleteFunc(s.kinds(), func(kind string) bool {
		return slices.ContainsFunc(without, func(op lin.Op) bool { return strings.HasPrefix(kind, op.String()) })
	})
}

// TestHeavyFaultyStoreIsNotLinearizable shows that the tests above prove something, and that clients are in processes of
// their own: an engine in each of them would pass if they were not.
func TestHeavyFaultyStoreIsNotLinearizable(t *testing.T) {
	faulty := []plan{{Store: "engine"}, {Store: "tiered", Fault: "cache without end"}}
	for _, store := range []string{"redis", "rueidis", "postgres"} {
		for fault := range faults {
			faulty = append(faulty, plan{Store: store, Fault: fault})
		}
	}
	for _, p := range faulty {
		t.Run(strings.TrimSuffix(p.Store+", "+p.Fault, ", "), func(t *testing.T) {
			_, err := recordFleet(newFleet(t, p), setting{lives: shortLives}, 0, 300, lin.Forget)
			require.ErrorIs(t, err, lin.ErrIllegal)
		})
	}
}

// newFleet starts processes on a store of their own.
func newFleet(t *testing.T, p plan) *lin.Fleet {
	t.Helper()
	p.Space = "verify-" + strings.ToLower(rand.Text()[:12])
	p.URL = serverOf(t, p)
	ctx, cancel := context.WithTimeout(context.Background(), fleetLife)
	t.Cleanup(cancel)
	fleet, err := lin.NewFleet(func() *exec.Cmd { return p.command(ctx) }, shares...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close()) })
	return fleet
}

// recordFleet checks n histories of the fleet's store, with seeds from first on, up to the first that is illegal, and
// counts the kinds of their events.
func recordFleet(fleet *lin.Fleet, s setting, first, n int, without ...lin.Op) (map[string]int, error) {
	model := lin.Model{Policy: s.policy, Slack: time.Microsecond, Grace: grace}
	kinds := map[string]int{}
	checks, ctx := errgroup.WithContext(context.Background())
	checks.SetLimit(workers)
	last := first + n
	for next := first; next < last && ctx.Err() == nil; next += batch {
		var workloads []lin.Workload
		for i := next; i < min(last, next+batch); i++ {
			workloads = append(workloads, lin.Workload{
				Scope: rand.Text(), Seed: uint64(i), Keys: 2 + i%2, Leases: s.lives, TTLs: s.lives,
				Patience: 8 * time.Millisecond, Without: without,
			})
		}
		histories, err := fleet.Record(workloads...)
		if err != nil {
			return nil, err
		}
		for _, history := range histories {
			for _, e := range history {
				kinds[e.Kind()]++
			}
			checks.Go(func() error { return model.Check(history) })
		}
	}
	return kinds, checks.Wait()
}
