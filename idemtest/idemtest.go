// Package idemtest proves that a store keeps the contract of package idem: that of any number of callers
// with one key exactly one runs its operation, that a result comes back byte for byte until its time is
// over and not a moment longer, that an owner that lost its claim can change nothing, and so on through
// the rules and their corners. It is for everybody who writes an [idem.Store].
//
//	func TestStore(t *testing.T) {
//		idemtest.Run(t, idemtest.Maker{
//			New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
//				store, err := mystore.New(mystore.Config{
//					Lease: cfg.Lease,
//					TTL:   cfg.TTL,
//					Hold:  cfg.OnLeaseExpiry == idem.Hold,
//				})
//				if err != nil {
//					tb.Fatal(err)
//				}
//				tb.Cleanup(func() { store.Close() })
//				return store
//			},
//			Unsupported: idemtest.MaxRecords | idemtest.MaxWaiters | idemtest.MaxWaitersPerKey,
//			Resolution:  time.Millisecond,
//		})
//	}
//
// There is one row, a subtest, per rule and corner. A row that fails prints the rule in words. Rows run
// in parallel, each on a store of its own and under a random scope, so the stores may share one server.
//
// A row takes the store's clock as it is. What must run out is given some tens of milliseconds, what must
// not run out an hour. No row asks that the machine be quick: whether an answer was right is judged by the
// times between which it was given. The rows also run within a bubble of [testing/synctest], where they
// take no time at all; a bubble allows no subtests, hence one for each row:
//
//	for _, row := range idemtest.Rows() {
//		t.Run(row.String(), func(t *testing.T) {
//			synctest.Test(t, func(t *testing.T) { row.Run(t, maker) })
//		})
//	}
package idemtest

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// A Maker tells how to make the stores that are to be proven.
type Maker struct {
	// New returns an open store with the settings that one row needs, and arranges with tb.Cleanup that
	// it is closed. Rows call it at the same time; the one about restarts calls it again and again. Stores
	// may share their records with each other, as two clients of one server do.
	New func(tb testing.TB, cfg Config) idem.Store

	// Unsupported names what the store lacks or New cannot set. The rows about it are not run, and say
	// so with tb.Log. Zero means that everything is proven.
	Unsupported Feature

	// Resolution is how far from its exact end a lease or TTL may run out: the grain of the store's
	// clock and what it may drift away from this process's during a second. Zero means that it runs
	// out to the nanosecond, as in the engine.
	Resolution time.Duration

	// Slack stretches every lease, TTL and pause. Zero means 1, which suits whatever answers within some
	// milliseconds. Rows take longer with it; with too little they still judge right, but they may miss
	// faults, for instance of waiters that did not wait yet.
	Slack float64

	// Rounds is how often each row about a race runs it. Zero means 10.
	Rounds int
}

// A Config is what a row needs of its store. The zero value of a field means the store's own default.
type Config struct {
	Lease            time.Duration    // of a request that names none
	TTL              time.Duration    // of a response that names none, and of an outcome that is unknown
	OnLeaseExpiry    idem.LeasePolicy // always to be obeyed: TakeOver, the zero value, or Hold
	MaxKeyBytes      int              // of a key, and of a scope
	MaxResponseBytes int              // header and body together
	MaxRecords       int              // records held at a time
	MaxWaiters       int              // callers blocked at a time
	MaxWaitersPerKey int              // of them, on one key
}

// A Row proves one rule, or one corner of it, under one policy.
type Row struct {
	// Name is a path such as "replay/byte for byte", the same under both policies.
	Name string

	// Policy is what the row asks of [Config.OnLeaseExpiry].
	Policy idem.LeasePolicy

	// Explanation is the rule in words. It is printed when the row fails.
	Explanation string

	needs  Feature // what the store must support
	config Config  // durations are yet to be stretched
	run    func(*rig)
}

// Run proves the stores of m: one subtest for each row, named by [Row.String].
func Run(t *testing.T, m Maker) {
	t.Helper()
	// The subtest around them ends when they have, and what m needs may be closed after Run.
	t.Run("contract", func(t *testing.T) {
		for _, row := range Rows() {
			t.Run(row.String(), func(t *testing.T) {
				t.Parallel()
				row.Run(t, m)
			})
		}
	})
}

// Rows returns all rows. Those that hold under both policies are there twice.
func Rows() []Row {
	table := slices.Concat(claimRows(), keyRows(), replayRows(), lifeRows(), ttlRows(), leaseRows(), holdRows(),
		completeRows(), restoreRows(), abandonRows(), extendRows(), waitRows(), handOverRows(), orderRows(),
		giveUpRows(), raceRows(), tokenRows(), limitRows(), inspectRows(), operatorRows(), closeRows())
	var rows []Row
	for policy, feature := range []Feature{idem.TakeOver: TakeOver, idem.Hold: Hold} {
		for _, row := range table {
			if other := (TakeOver | Hold) &^ feature; row.needs&other != 0 {
				continue
			}
			row.Policy = idem.LeasePolicy(policy)
			row.needs |= feature
			row.config.OnLeaseExpiry = row.Policy
			rows = append(rows, row)
		}
	}
	return rows
}

// String returns policy and name, "Hold/replay/byte for byte" for instance.
func (row Row) String() string {
	if row.Policy == idem.Hold {
		return "Hold/" + row.Name
	}
	return "TakeOver/" + row.Name
}

// Run proves the row on a store of m, and fails tb when it does not hold.
func (row Row) Run(tb testing.TB, m Maker) {
	tb.Helper()
	if lacking := row.needs & m.Unsupported; lacking != 0 {
		tb.Logf("%s: not proven, the store's maker does not support %v", row.Name, lacking)
		return
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s: %s", row.Name, row.Explanation)
		}
	})
	row.run(newRig(tb, m, row))
}
