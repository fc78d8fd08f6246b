package lin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// Op is the method that was called.
type Op uint8

// The methods of [Store].
const (
	Begin Op = iota
	Complete
	Abandon
	Extend
	Lookup
	Forget
	Resolve
)

// String returns the method's name.
func (o Op) String() string {
	names := [...]string{"Begin", "Complete", "Abandon", "Extend", "Lookup", "Forget", "Resolve"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// An Event is one call of a store's method: what it was given and what it answered. Fields that the
// method does not know are zero.
type Event struct {
	Client     int
	Start, End time.Duration // since the history's start, by the monotonic clock
	Op         Op
	Key        string

	// What it was given.
	Wait   bool          // Begin
	Claim  idem.Claim    // Complete, Abandon, Extend; of a Begin only the fingerprint
	Status int           // of the response, and unlike any other's in the history: Complete, Resolve
	Life   time.Duration // the lease (Begin, Extend) or the TTL (Complete, Resolve)

	// What it answered. An answer of Lookup is kept in Outcome too: what both tell means the same.
	Found   bool         // Lookup, Forget
	Outcome idem.Outcome // Begin, Lookup
	Err     error
}

// sentinels are the errors that mean something to the model.
var sentinels = []error{idem.ErrClaimLost, idem.ErrNoClaim, idem.ErrFull, idem.ErrClosed, context.DeadlineExceeded}

// plain returns the sentinel that err is, without what a store says besides, or err itself if it is none.
func plain(err error) error {
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			return sentinel
		}
	}
	return err
}

// Kind returns the method and its answer without any numbers, "Begin: fresh" for instance. A test
// that counts kinds can see that a workload reached what it was made for.
func (e Event) Kind() string {
	method := e.Op.String()
	if e.Wait {
		method += " and wait"
	}
	switch {
	case e.Err != nil:
		return method + ": " + plain(e.Err).Error()
	case e.Op == Begin, e.Op == Lookup && e.Found:
		return method + ": " + e.Outcome.State.String()
	case e.Op == Lookup, e.Op == Forget && !e.Found:
		return method + ": nothing"
	default:
		return method + ": ok"
	}
}

// String returns all of the event on one line, its times in microseconds.
func (e Event) String() string {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return fmt.Sprintf("%10.2f %10.2f  client %d  %s  %s%s%s", micros(e.Start), micros(e.End), e.Client, e.Key, e.Kind(), e.given(), e.answered())
}

func (e Event) given() string {
	switch e.Op {
	case Begin:
		return fmt.Sprintf("  fp=%x lease=%v", e.Claim.Fingerprint[0], e.Life)
	case Complete:
		return fmt.Sprintf("  token=%d status=%d ttl=%v", e.Claim.Token, e.Status, e.Life)
	case Abandon:
		return fmt.Sprintf("  token=%d", e.Claim.Token)
	case Extend:
		return fmt.Sprintf("  token=%d lease=%v", e.Claim.Token, e.Life)
	case Resolve:
		return fmt.Sprintf("  status=%d ttl=%v", e.Status, e.Life)
	default:
		return ""
	}
}

func (e Event) answered() string {
	if e.Outcome.State == 0 {
		return ""
	}
	o := e.Outcome
	return fmt.Sprintf(" -> token=%d status=%d remaining=%v", o.Claim.Token, o.Response.Status, o.Remaining)
}
