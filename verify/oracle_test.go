package verify_test

import (
	"cmp"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// An oracle is the contract as a plain map under exact time. It knows nothing of waiters: who hands a
// claim to one tells it so.
type oracle struct {
	policy     idem.LeasePolicy
	lease, ttl time.Duration // the store's defaults
	cells      map[string]*cell
	last       uint64 // the highest token seen
}

// absent is the state of a key without a record.
const absent = idem.State(0)

// A cell is what a key has. When it is absent, token and fingerprint are still those of who had it.
type cell struct {
	is          idem.State
	token       uint64 // zero: nobody's, or a resolved record's that was not looked at
	fingerprint idem.Fingerprint
	response    idem.Response
	since, ends time.Time // a zero since is not known
}

// at returns the key's cell as it is at now.
func (o *oracle) at(key string, now time.Time) *cell {
	c := o.cells[key]
	if c == nil {
		c = &cell{}
		o.cells[key] = c
	}
	for c.is != absent && !now.Before(c.ends) {
		if c.is == idem.InProgress && o.policy == idem.Hold {
			c.is, c.ends = idem.Unknown, c.ends.Add(o.ttl)
			continue
		}
		c.is = absent
	}
	return c
}

// claim makes a claim that was granted at now the key's current one.
func (o *oracle) claim(c idem.Claim, lease time.Duration, now time.Time) {
	o.last = c.Token
	o.cells[c.Key] = &cell{
		is: idem.InProgress, token: c.Token, fingerprint: c.Fingerprint, since: now, ends: now.Add(cmp.Or(lease, o.lease)),
	}
}

func isTooLarge(resp idem.Response) bool { return len(resp.Header)+len(resp.Body) > most }

// finish ends a claim with a response.
func (o *oracle) finish(key string, token uint64, f idem.Fingerprint, resp idem.Response, now time.Time) {
	life := cmp.Or(resp.TTL, o.ttl)
	resp.TTL = 0
	if isTooLarge(resp) {
		resp.Body, resp.Truncated = nil, true
	}
	o.cells[key] = &cell{is: idem.Replay, token: token, fingerprint: f, response: resp, since: now, ends: now.Add(life)}
}

// A verdict is what the owner of a claim may be told.
type verdict struct{ accepted, lost bool }

// judge says whether the holder of c may finish it in cell at. A claim that somebody else followed may
// be refused or not when nobody has the key: the record of who followed may be there or not.
func judge(at *cell, c idem.Claim) verdict {
	switch {
	case at.token == c.Token:
		return verdict{accepted: true}
	case at.is == absent:
		return verdict{accepted: true, lost: true}
	default:
		return verdict{lost: true}
	}
}
