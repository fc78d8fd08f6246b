package lin_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

const (
	ms    = time.Millisecond
	lease = time.Second
)

var ours, theirs = idem.Fingerprint{1}, idem.Fingerprint{2}

// at puts the calls that a client makes on one key one after the other, each for as long as from one full ms to the next.
func at(events ...lin.Event) []lin.Event {
	for i := range events {
		e := &events[i]
		e.Key, e.Client = "k", i
		if e.Start == 0 {
			e.Start = time.Duration(i) * ms
		}
		e.End = e.Start + ms - 1
	}
	return events
}

func begin(state idem.State, token uint64, remaining time.Duration) lin.Event {
	e := lin.Event{Op: lin.Begin, Claim: idem.Claim{Fingerprint: ours}, Life: lease}
	e.Outcome = idem.Outcome{State: state, Remaining: remaining}
	if state == idem.Fresh {
		e.Outcome.Claim = idem.Claim{Key: "k", Token: token, Fingerprint: ours}
	}
	return e
}

// leave is a Begin whose context ended.
func leave(fingerprint idem.Fingerprint, life time.Duration) lin.Event {
	return lin.Event{Op: lin.Begin, Wait: true, Claim: idem.Claim{Fingerprint: fingerprint}, Life: life, Err: context.DeadlineExceeded}
}

// look is a Lookup that finds a claim, or nothing if the token is zero.
func look(state idem.State, token uint64, remaining time.Duration) lin.Event {
	e := lin.Event{Op: lin.Lookup, Found: token != 0, Outcome: idem.Outcome{State: state, Remaining: remaining}}
	e.Outcome.Claim = idem.Claim{Token: token, Fingerprint: ours}
	return e
}

func complete(token uint64, err error) lin.Event {
	return lin.Event{Op: lin.Complete, Claim: idem.Claim{Key: "k", Token: token, Fingerprint: ours}, Status: 7, Life: lease, Err: err}
}

func later(e lin.Event, start time.Duration) lin.Event {
	e.Start = start
	return e
}

var (
	nothing = look(0, 0, 0)
	taken   = begin(idem.InProgress, 0, lease)
)

func TestStrayClaims(t *testing.T) {
	for _, test := range []struct {
		name    string
		policy  idem.LeasePolicy
		grace   time.Duration
		legal   bool
		history []lin.Event
	}{
		{"holds the key for a while", 0, 5 * ms, true, at(leave(ours, lease), taken)},
		{"holds nothing", 0, 5 * ms, true, at(leave(ours, lease), nothing)},
		{"does not exist in process", 0, 0, false, at(leave(ours, lease), taken)},
		{"is given up in time", 0, 5 * ms, false, at(leave(ours, lease), later(begin(idem.InProgress, 0, lease), 8*ms))},
		{"is given up", 0, 5 * ms, true, at(leave(ours, lease), taken, begin(idem.Fresh, 9, lease))},
		{"is granted late", 0, 5 * ms, true, at(leave(ours, lease), nothing, taken)},
		{"has the fingerprint", 0, 5 * ms, true, at(leave(theirs, lease), begin(idem.Mismatch, 0, 0))},
		{"has no other fingerprint", 0, 5 * ms, false, at(leave(ours, lease), begin(idem.Mismatch, 0, 0))},
		{"has the lease", 0, 5 * ms, false, at(leave(ours, lease), begin(idem.InProgress, 0, 2*lease))},
		{"has a new token", 0, 9 * ms, false, at(owned(5, ms/2), leave(ours, lease), look(idem.InProgress, 4, lease))},
		{"does not take from an owner", 0, 5 * ms, false, at(begin(idem.Fresh, 1, lease), leave(theirs, lease), begin(idem.Mismatch, 0, 0))},
		{"stops an owner that is late", 0, 9 * ms, true, at(owned(1, ms/2), leave(ours, lease), taken, complete(1, idem.ErrClaimLost))},
		{"lets an owner that is late pass when it is over", 0, 9 * ms, true, at(owned(1, ms/2), leave(ours, lease), taken, complete(1, nil))},
		{"does not stop an owner in time", 0, 9 * ms, false, at(begin(idem.Fresh, 1, lease), leave(ours, lease), complete(1, idem.ErrClaimLost))},
		{"leaves the key unknown under Hold", idem.Hold, 9 * ms, true, at(leave(ours, ms/2), begin(idem.Unknown, 0, 0), nothing)},
		{"leaves the key free under TakeOver", 0, 9 * ms, false, at(leave(ours, ms/2), begin(idem.Unknown, 0, 0))},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := lin.Model{Policy: test.policy, Grace: test.grace}.Check(test.history)
			if test.legal {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, lin.ErrIllegal)
			}
		})
	}
}

// owned is a Fresh Begin with another lease.
func owned(token uint64, life time.Duration) lin.Event {
	e := begin(idem.Fresh, token, life)
	e.Life = life
	return e
}

// TestServeRefusesNoise is about a process that is started by somebody else than a fleet.
func TestServeRefusesNoise(t *testing.T) {
	store := newPlain(idem.TakeOver, sound)
	require.ErrorContains(t, lin.Serve(store, bytes.NewBufferString("hello\n"), io.Discard), "greeting")
	var in bytes.Buffer
	require.NoError(t, gob.NewEncoder(&in).Encode(struct{ Origin int64 }{1}))
	full := errors.New("full")
	require.ErrorIs(t, lin.Serve(store, &in, failing{full}), full)
}

// A failing writer takes nothing.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
