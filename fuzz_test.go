package idem

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A tape is a fuzz input, read byte by byte. Behind its end are zeros.
type tape []byte

func (b *tape) next() int {
	if len(*b) == 0 {
		return 0
	}
	v := (*b)[0]
	*b = (*b)[1:]
	return int(v)
}

func (b *tape) flag() bool { return b.next()&1 != 0 }

// pick chooses one of the values.
func pick[T any](b *tape, values ...T) T { return values[b.next()%len(values)] }

// requireSound fails t when check, one of the parts of checkInvariants, finds a fault. The structures are fuzzed
// inside a shard that is nobody's, so that those parts can look at them.
func requireSound(t *testing.T, check func(*faults)) {
	t.Helper()
	var f faults
	check(&f)
	require.Empty(t, f)
}

// lives are the leases and TTLs: zero for the default, the edges of a tick and of the wheel's levels, what
// the coarse clock tells apart, and the end of time.
var lives = []time.Duration{
	0, 1, 999, time.Microsecond, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 * time.Millisecond, 1<<26 - 1, 1 << 26, 1<<26 + 1,
	time.Second, 10*time.Second + 1, 1 << 32, 1 << 38, time.Hour, 26 * time.Hour, 400 * 24 * time.Hour, math.MaxInt64,
	25 * time.Millisecond,
}

// fuzzLate is how long after the end of a lease its waiters may still sleep: a tick of the wheel, and the pause of a
// tick between two rounds of the sweeper.
const fuzzLate = 2 << tickBits

// fuzzHeld is until when a record may be held of which nobody waits for the end.
func fuzzHeld(since, ends int64) int64 {
	return after(ends, time.Duration(fuzzLate+(ends-max(since, 0)+fuzzLate)/maxLag))
}

// fuzzKeys are few, so that callers meet; two of them are equal when scope and key are joined.
var fuzzKeys = []modelKey{
	{"", "k"}, {"a", "bc"}, {"ab", "c"}, {"s", "k\x00\xff"}, {strings.Repeat("s", 255), strings.Repeat("k", 255)},
}

const (
	fuzzSteps = 120                             // of one input: more only take longer
	fuzzBulk  = 3 * sweepSlice / 2              // keys of a bulk: more than one hold of the lock reclaims
	fuzzEnd   = 5 * 365 * 24 * int64(time.Hour) // ns: where an engine's time ends

	fuzzRestarts = 9 // together they stay within what a time of day can be

	sinceUnknown = math.MinInt64 // as a modelRecord's since
)

// An engineFuzz turns a tape into calls on an engine and tells the model of the answers.
type engineFuzz struct {
	model
	tape
	ctx   context.Context //nolint:containedctx // of the bubble that the whole struct lives in
	trace []string        // what was done, for the log of a failure

	restarts int
}

// FuzzEngine makes the calls of several callers, some of which wait, while time moves, and compares every
// answer and after every step every record with a plain map.
func FuzzEngine(f *testing.F) {
	for _, seed := range engineSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		synctest.Test(t, func(t *testing.T) { runEngineFuzz(t, input) })
	})
}

func runEngineFuzz(t *testing.T, input []byte) {
	f := &engineFuzz{tape: input, ctx: context.Background()}
	f.t, f.records = t, map[modelKey]*modelRecord{}
	e, err := New(Config{
		OnLeaseExpiry:    pick(&f.tape, TakeOver, Hold),
		Shards:           pick(&f.tape, 1, 2),
		Lease:            pick(&f.tape, lives...),
		TTL:              pick(&f.tape, lives...),
		MaxResponseBytes: pick(&f.tape, 40<<10, 64, 1000, 17000),
		MaxRecords:       pick(&f.tape, 0, 2, 5, 60),
		MaxBytes:         pick(&f.tape, 0, 1<<20),
		MaxWaiters:       pick(&f.tape, 0, 4),
		MaxWaitersPerKey: pick(&f.tape, 0, 1, 3),
	})
	require.NoError(t, err)
	f.e, f.cfg = e, e.cfg
	f.last, f.before = e.tokens.Load(), e.tokens.Load()
	defer func() {
		f.leave()
		if t.Failed() {
			t.Log(strings.Join(f.trace, "\n"))
		}
	}()
	steps := [...]func(){
		doBegin: f.begin, doWait: f.wait, doComplete: f.complete, doAbandon: f.abandon, doExtend: f.extend,
		doForget: f.forget, doResolve: f.resolve, doLookup: f.lookup, doAll: f.all, doSleep: f.sleep,
		doSleepToDeadline: f.sleepToDeadline, doCancel: f.cancel, doHeat: f.heat, doCrowd: f.crowd, doBulk: f.bulk, doRush: f.rush, doRestart: f.restart,
	}
	for n := 0; len(f.tape) > 0 && n < fuzzSteps; n++ {
		steps[f.next()%len(steps)]()
		f.reconcile()
		f.compare()
	}
	f.close()
}

// leave lets nobody stay behind in the bubble, whatever failed.
func (f *engineFuzz) leave() {
	for _, r := range f.records {
		for _, w := range r.queue {
			w.cancel(nil)
		}
	}
	_ = f.e.Close() // it is nil
}

// The steps that an input is made of, with the bytes that follow each. A life is a place in lives; a claim is
// how many were granted since, and whether it knows its origin; a response is size, header, how, life.
const (
	doBegin           = iota // key, how, life; how is the fingerprint in the lower bits, then the Buf
	doWait                   // key, how, life, patience, whether until the lease ends instead
	doComplete               // claim, response
	doAbandon                // claim
	doExtend                 // claim, life
	doForget                 // key
	doResolve                // key, response
	doLookup                 // key
	doAll                    //
	doSleep                  // life
	doSleepToDeadline        // key, whether to the end of the tick, which ns beside it
	doCancel                 // key, which waiter
	doHeat                   // key, how, life, whether time passes
	doCrowd                  // key, how, life
	doBulk                   // key, how, life, response, one in how many is completed
	doRush                   // key, which calls, their bytes
	doRestart                // life, whether the snapshot is restored twice
)

// engineSeeds are inputs that go where chance seldom does, under four configs: each of the steps is taken with
// each of them, and every answer is checked, so that a seed need not say what is to come of it.
func engineSeeds() (seeds [][]byte) {
	plain := []byte{0, 0, 0, 0, 0, 0, 0, 0, 0}
	hold := []byte{1, 0, 11, 11, 0, 0, 0, 0, 0}
	holdBriefly := []byte{1, 0, 11, 1, 0, 0, 0, 0, 0}
	small := []byte{0, 1, 7, 11, 1, 1, 1, 1, 2}
	lapse := []byte{doBegin, 0, 0, 11, doWait, 0, 0, 11, 0, 0, doWait, 0, 0, 1, 0, 0, doSleepToDeadline, 0, 0, 1}
	for _, config := range [][]byte{plain, hold, holdBriefly, small} {
		for _, steps := range [][]byte{
			// An operation and its duplicates, replayed until the very end.
			{doBegin, 0, 0, 0, doBegin, 0, 0, 0, doComplete, 0, 0, 3, 1, 100, 11, doBegin, 0, 8, 0, doBegin, 0, 6, 0, doLookup, 0, doAll,
				doSleepToDeadline, 0, 0, 0, doBegin, 0, 16, 0, doSleep, 1, doBegin, 0, 6, 0},
			// A lease that runs out between its tick and the sweeper, and both owners' claims.
			{doBegin, 0, 0, 6, doSleepToDeadline, 0, 0, 0, doBegin, 0, 0, 0, doSleep, 1, doAll, doBegin, 0, 6, 1, doComplete, 1, 1, 2, 0, 0, 0, doSleep, 1,
				doExtend, 1, 0, 5, doSleepToDeadline, 0, 1, 2, doAbandon, 0, 0, doLookup, 0, doExtend, 1, 1, 0, doComplete, 0, 0, 0, 0, 0, 1},
			// A waiter's lease, and every way in which it ends.
			{doBegin, 1, 0, 0, doWait, 1, 0, 11, 0, 0, doWait, 1, 0, 0, 11, 1, doAbandon, 0, 1, doCancel, 1, 0, doSleep, 12, doWait, 1, 0, 0, 0, 0, doForget, 1,
				doWait, 1, 0, 0, 0, 0, doComplete, 0, 0, 4, 2, 5, 0},
			// Large responses, too large ones, and what lies between shared and own cells.
			{doBegin, 2, 0, 0, doComplete, 0, 0, 6, 2, 0, 0, doBegin, 3, 0, 0, doComplete, 0, 1, 7, 0, 0, 0, doBegin, 2, 16, 0, doLookup, 3,
				doForget, 2, doBegin, 4, 0, 0, doComplete, 0, 0, 8, 1, 3, 0, doBegin, 4, 8, 0, doResolve, 4, 9, 0, 0, 0},
			// A hot record must be gone when its record is.
			{doBegin, 0, 0, 0, doComplete, 0, 0, 3, 1, 0, 17, doHeat, 0, 0, 0, 1, doBegin, 0, 0, 0, doBegin, 0, 8, 0, doForget, 0, doBegin, 0, 0, 0,
				doComplete, 0, 0, 4, 0, 1, 13, doHeat, 0, 0, 0, 1, doSleepToDeadline, 0, 0, 1, doBegin, 0, 0, 0},
			// Nor may it be read at its deadline, while the coarse clock still runs.
			{doBegin, 0, 0, 0, doComplete, 0, 0, 3, 1, 0, 19, doHeat, 0, 0, 0, 1, doSleepToDeadline, 0, 0, 0, doBegin, 0, 0, 0, doSleep, 1, doBegin, 0, 0, 0},
			// A late Extend ends Unknown, and so does Abandon.
			{doBegin, 0, 0, 11, doSleep, 11, doBegin, 0, 0, 0, doExtend, 0, 0, 11, doBegin, 0, 6, 0, doSleep, 11, doLookup, 0, doAbandon, 0, 1, doBegin, 0, 6, 0},
			// More waiters than there is room for, and all of them are told.
			slices.Concat([]byte{doBegin, 0, 0, 15}, bytes.Repeat([]byte{doWait, 0, 0, 0, 0, 0}, 5), []byte{doWait, 0, 6, 0, 0, 0, doComplete, 0, 0, 4, 1, 0, 0}),
			// More records than one slice end at once.
			{doBulk, 0, 0, 11, 2, 1, 0, 11, 1, doAll, doSleep, 11, doBulk, 0, 0, 17, 4, 0, 0, 1, 0, doSleepToDeadline, 0, 1, 2, doAll},
			{doCrowd, 3, 0, 1, doCrowd, 3, 0, 1, doSleep, 17, doResolve, 3, 0, 0, 0, 0, doExtend, 0, 0, 18, doCrowd, 3, 7, 0, doResolve, 3, 3, 0, 0, 18, doSleep, 17},
			// What is done, in progress, and lapsed before a restart, meanwhile, and after it.
			{doBegin, 0, 0, 15, doComplete, 0, 0, 3, 1, 100, 15, doBegin, 1, 0, 15, doBegin, 2, 0, 1, doBegin, 3, 0, 11, doBegin, 4, 0, 12, doComplete, 0, 0, 10, 0, 0, 15,
				doSleep, 10, doRestart, 11, 1, doAll, doBegin, 0, 0, 0, doBegin, 1, 0, 0, doComplete, 3, 0, 1, 0, 0, 0, doExtend, 1, 0, 11, doRestart, 0, 0, doRestart, 14, 0,
				doBegin, 3, 0, 0, doLookup, 4, doHeat, 0, 0, 0, 1, doRestart, 15, 1, doAll, doBegin, 0, 0, 0},
			slices.Concat(bytes.Repeat([]byte{doBulk, 0, 0, 13, 2, 1, 0, 13, 1, doRestart, 0, 0}, 4), []byte{doRestart, 18, 1, doBegin, 0, 0, 0, doAll}),
			// A lapsed claim that was promised to a waiter, and each call that may come before the sweeper.
			slices.Concat(lapse, []byte{doForget, 0, doAll}), slices.Concat(lapse, []byte{doLookup, 0}), slices.Concat(lapse, []byte{doResolve, 0, 1, 0, 0, 0}),
			slices.Concat(lapse, []byte{doBegin, 0, 0, 0, doBegin, 0, 6, 0}), slices.Concat(lapse, []byte{doComplete, 0, 0, 1, 0, 0, 0}),
			slices.Concat(lapse, []byte{doAbandon, 0, 0, doSleep, 12}), slices.Concat(lapse, []byte{doExtend, 0, 0, 1, doSleep, 5, doSleep, 12}),
			slices.Concat(lapse, []byte{doWait, 0, 0, 0, 0, 0, doSleep, 7, doSleep, 7}), slices.Concat(lapse, []byte{doCancel, 0, 0, doRush, 0, 1, 0}),
		} {
			seeds = append(seeds, slices.Concat(config, steps))
		}
		for i := range byte(8) {
			seeds = append(seeds, slices.Concat(config, []byte{
				doBegin, 0, 0, 0, doWait, 0, 0, 0, 0, 0, doRush, 0, i, 0, 0, 0, 0, doSleep, 12, doBegin, 0, 0, 0, doWait, 0, 0, 0, 0, 0, doWait, 0, 0, 0, 0, 0, doRush, 0, i, 1, 0, 0, 0,
			}))
		}
	}
	return seeds
}
