package lin

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// never is the deadline of what does not end within a history.
const never = time.Duration(math.MaxInt64)

// absent is the state of a key without a record; the others are the contract's own.
const absent = idem.State(0)

// A state is what the contract says about one key. Its deadline is known only as well as the moment
// at which it was set, which lies between the start and the end of some call.
type state struct {
	is          idem.State // absent, InProgress, Replay (it is done) or Unknown
	handed      bool       // in progress, and the owner is a waiter that does not know it yet
	token       uint64     // the claim's, also when it is over; zero: none was granted, or it was not seen yet
	last        uint64     // the highest token seen; a new one is above it
	fingerprint idem.Fingerprint
	status      int           // the response's
	from, until time.Duration // the first and the last moment at which the lease or the TTL may end
	stray       int           // in progress or unknown, and nobody knows of the claim: its id; else zero
}

func (s state) hash() uint64 {
	h := uint64(s.is) ^ s.token<<3 ^ s.last<<17 ^ uint64(s.status)<<31
	return h ^ uint64(s.from)<<7 ^ uint64(s.until)<<11 ^ uint64(s.stray)<<23
}

// step returns every state in which e can leave the key if it takes effect in s, and none if its
// answer cannot come about in s. What makes it several is time, and waiters.
func (m Model) step(s state, e *event) []any {
	var next []any
	for _, found := range m.moments(s, e) {
		for _, left := range m.apply(found, e) {
			next = append(next, left)
		}
	}
	return next
}

// moments returns s as e may find it, after all that can happen to a key with nobody's doing.
func (m Model) moments(s state, e *event) []state {
	found := []state{s}
	for i := 0; i < len(found); i++ {
		for _, next := range m.drift(found[i], e) {
			if !slices.Contains(found, next) {
				found = append(found, next)
			}
		}
	}
	return slices.DeleteFunc(found, func(s state) bool { return m.over(s, e) })
}

// drift returns what s may turn into before e takes effect: its deadline passes; a claim that nobody knows of is given
// up, or granted; and if somebody waits for a key that became free, it is perhaps in that caller's hands.
func (m Model) drift(s state, e *event) (next []state) {
	if s.is != absent {
		if e.End+m.Slack >= s.from {
			next = append(next, m.lapse(s))
		}
		if s.stray != 0 {
			next = append(next, s.free())
		}
		return next
	}
	if s.last != 0 && e.met {
		// The claim has passed to a waiter, which has yet to hear of it. What lease it asked for does
		// not matter so far, and should it give up instead, the key is free again.
		handed := s
		handed.is, handed.handed, handed.token, handed.from, handed.until = idem.InProgress, true, 0, never, never
		next = append(next, handed)
	}
	for _, c := range e.strays {
		first, last := c.granted()
		next = append(next, state{
			is: idem.InProgress, last: s.last, fingerprint: c.fingerprint, stray: c.id, from: first + c.lease, until: last + c.lease,
		})
	}
	return next
}

// over reports whether s can not have lasted until e: its deadline has passed, or the claim that nobody knows of should
// have been given up.
func (m Model) over(s state, e *event) bool {
	if s.is != absent && e.Start-m.Slack >= s.until {
		return true
	}
	return s.stray != 0 && !slices.ContainsFunc(e.strays, func(c *stray) bool { return c.id == s.stray })
}

// lapse returns the state after the deadline of s. An unknown key stays unknown for the store's
// default TTL, which no history lives to see.
func (m Model) lapse(s state) state {
	if s.is == idem.InProgress && m.Policy == idem.Hold {
		s.is, s.from, s.until = idem.Unknown, never, never
		return s
	}
	return s.free()
}

// free returns the state after s is given up. Who had the key last is not forgotten.
func (s state) free() state {
	f := state{token: s.token, last: s.last, fingerprint: s.fingerprint}
	if s.stray != 0 {
		f.fingerprint = idem.Fingerprint{} // it does not matter who has come and gone
	}
	return f
}

// apply returns the states after e, or none if e's answer is not the right one in s.
func (m Model) apply(s state, e *event) []state {
	if s.handed && !e.met && !e.Wait {
		return nil // the waiter to which it was handed would be waiting still
	}
	switch e.Op {
	case Begin:
		return m.begin(s, e)
	case Complete, Abandon, Extend:
		return m.finish(s, e)
	case Forget:
		return only(s.free(), e.Err == nil && e.Found == (s.is != absent))
	case Resolve:
		return m.resolve(s, e)
	default:
		return m.lookup(s, e)
	}
}

// only returns s if the answer was right.
func only(s state, right bool) []state {
	if !right {
		return nil
	}
	return []state{s}
}

func (m Model) begin(s state, e *event) []state {
	same := e.Claim.Fingerprint == s.fingerprint
	switch {
	case e.Err != nil:
		// Only a caller that waits may give up. What it leaves behind, if anything, is a stray.
		if !e.Wait || !left(e.Err) {
			return nil
		}
		if s.handed {
			return []state{s, s.free()}
		}
		return []state{s}
	case e.Outcome.State == idem.Fresh:
		c := e.Outcome.Claim
		free := s.is == absent || s.handed && e.Wait && same
		right := c.Token > s.last && c.Key == e.Key && c.Fingerprint == e.Claim.Fingerprint && e.Outcome.Remaining == e.Life
		s = state{is: idem.InProgress, token: c.Token, last: c.Token, fingerprint: c.Fingerprint}
		return only(s.lasting(e), free && right)
	case e.Outcome.State == idem.Mismatch:
		return only(s, s.is != absent && !same)
	case e.Outcome.State == idem.InProgress:
		return only(s, same && !e.Wait && m.shows(s, e))
	default:
		return only(s, same && m.shows(s, e))
	}
}

func (m Model) lookup(s state, e *event) []state {
	if e.Err != nil || !e.Found {
		return only(s, e.Err == nil && s.is == absent)
	}
	c := e.Outcome.Claim
	right := c.Fingerprint == s.fingerprint && m.shows(s, e)
	if s.token != 0 {
		return only(s, right && c.Token == s.token)
	}
	// The token of a claim that was handed on, or of a resolved record. The latter stays.
	right = right && c.Token > s.last
	if !s.handed {
		s.token, s.last = c.Token, c.Token
	}
	return only(s, right)
}

// shows tells whether the state, the response and the time left in e's answer are those of s.
func (m Model) shows(s state, e *event) bool {
	o := e.Outcome
	switch {
	case s.is == absent || o.State != s.is:
		return false
	case s.is == idem.Replay:
		return o.Response.Status == s.status
	case s.is == idem.Unknown:
		return true
	case s.handed:
		passed := m.Lease - o.Remaining // since the waiter became the owner
		return passed >= -m.Slack && passed <= e.End+m.Slack
	default:
		return o.Remaining > 0 && o.Remaining >= s.from-e.End-m.Slack && o.Remaining <= s.until-e.Start+m.Slack
	}
}

// finish is what the owner of a claim can do. It may while the claim is the key's current one, even
// after its lease ran out, and while nobody has the key. If somebody else had it in the meantime, the
// store may know that or not: the record of an owner whose lease ran out too may be there still.
func (m Model) finish(s state, e *event) []state {
	lost := errors.Is(e.Err, idem.ErrClaimLost)
	current := s.is == absent || s.token == e.Claim.Token
	completed := s.is == idem.Replay && current
	switch {
	case !current || completed && e.Op == Extend:
		return only(s, lost)
	case e.Err != nil:
		return only(s, lost && s.token != e.Claim.Token)
	case completed:
		return []state{s}
	case e.Op == Abandon:
		return []state{s.free()}
	}
	s.is, s.token, s.fingerprint, s.stray = idem.InProgress, e.Claim.Token, e.Claim.Fingerprint, 0
	if e.Op == Complete {
		s.is, s.status = idem.Replay, e.Status
	}
	return []state{s.lasting(e)}
}

func (m Model) resolve(s state, e *event) []state {
	if s.is != idem.InProgress && s.is != idem.Unknown {
		return only(s, errors.Is(e.Err, idem.ErrNoClaim))
	}
	resolved := state{is: idem.Replay, last: s.last, fingerprint: s.fingerprint, status: e.Status}
	return only(resolved.lasting(e), e.Err == nil)
}

// lasting returns s with the deadline that e gave it.
func (s state) lasting(e *event) state {
	s.from, s.until = e.Start+e.Life, e.End+e.Life
	return s
}
