package lin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

// short are leases and TTLs of which many end within a history.
var short = []time.Duration{2 * time.Microsecond, 20 * time.Microsecond, 60 * time.Microsecond, time.Hour}

// search checks histories of the store until one is illegal, and returns that error.
func search(store lin.Store, policy idem.LeasePolicy, histories int) error {
	for i := range histories {
		w := lin.Workload{Scope: fmt.Sprint("history ", i), Seed: uint64(i)}
		if i%2 == 0 {
			w.Leases, w.TTLs = short, short
		}
		if p, ok := store.(*plain); ok {
			p.records = map[string]*record{} // it takes no notice of scopes
		}
		if err := (lin.Model{Policy: policy}).Check(w.Record(store)); err != nil {
			return err
		}
	}
	return nil
}

func TestSoundStoreIsLinearizable(t *testing.T) {
	for policy, name := range map[idem.LeasePolicy]string{idem.TakeOver: "take over", idem.Hold: "hold"} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, search(newPlain(policy, sound), policy, 300))
		})
	}
}

// TestFaultIsFound shows that the test above proves something.
func TestFaultIsFound(t *testing.T) {
	for policy, faults := range map[idem.LeasePolicy][]fault{
		idem.TakeOver: {
			twoSteps, anyoneCompletes, anyoneAbandons, anyoneExtends, extendReopens, extendForgets,
			completeTwice, leaseTooShort, leaseTooLong, ttlTooLong, replayRefreshes, tokenAgain,
			tokensOfKey, tokensOfShard, anyFingerprint, lateFingerprint, waiterReleases,
			lateOwnerRefused, forgetForgets, resolveKeepsToken, resolveMakesRecords, lookupIsLate,
			wrongTimeLeft, tornResponse,
		},
		idem.Hold: {holdTakesOver, holdLosesOwner},
	} {
		for _, f := range faults {
			t.Run(string(f), func(t *testing.T) {
				require.ErrorIs(t, search(newPlain(policy, f), policy, 2000), lin.ErrIllegal)
			})
		}
	}
}
