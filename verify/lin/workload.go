package lin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// A Workload is what clients do to a store while their calls are recorded. It is short, since the
// time to check a history grows steeply with its length: many short ones find more than a long one.
type Workload struct {
	// Scope is that of all its keys. On a store that was used before it must be a new one, since a
	// history begins with absent keys.
	Scope string

	// Seed chooses the calls (though not how they fall together).
	Seed uint64

	// Clients call at the same time, each Calls times, on one of Keys. Zero means 8, 8 and 3.
	Clients, Calls, Keys int

	// Leases and TTLs are what is drawn from for each call that sets one. Nil means one of an hour,
	// which does not end.
	Leases, TTLs []time.Duration

	// Patience is the longest that a Begin waits; zero means 200 µs. It paces the history: while one
	// client waits, others go on and leases run out.
	Patience time.Duration

	// Without are the methods that are not called; Begin is called in their stead.
	Without []Op
}

// A run is a workload, or a process's share of one, that is being recorded.
type run struct {
	Workload
	store   Store
	start   time.Time
	claims  []atomic.Pointer[idem.Claim] // by key: the one that was granted last
	history [][]Event                    // by client
}

// Record lets the clients loose and returns all their calls.
func (w Workload) Record(store Store) []Event {
	w = w.withDefaults()
	return w.record(store, share{0, w.Clients}, time.Now)
}

func (w Workload) withDefaults() Workload {
	w.Clients, w.Calls, w.Keys = cmp.Or(w.Clients, 8), cmp.Or(w.Calls, 8), cmp.Or(w.Keys, 3)
	w.Patience = cmp.Or(w.Patience, 200*time.Microsecond)
	return w
}

// A share is the clients of one process: so many, from the one with number first on.
type share struct{ first, clients int }

// record lets a share of the clients loose when open returns, with the moment from which times count.
func (w Workload) record(store Store, s share, open func() time.Time) []Event {
	r := &run{
		Workload: w,
		store:    store,
		claims:   make([]atomic.Pointer[idem.Claim], w.Keys),
		history:  make([][]Event, w.Clients),
	}
	var ready, done sync.WaitGroup
	gate := make(chan struct{})
	ready.Add(s.clients)
	for i := s.first; i < s.first+s.clients; i++ {
		done.Go(func() {
			c := client{run: r, id: i, rand: rand.New(rand.NewPCG(w.Seed, uint64(i)))}
			c.claims = make([]idem.Claim, w.Keys)
			ready.Done()
			<-gate // so that the first calls meet too
			c.work()
		})
	}
	ready.Wait()
	r.start = open()
	close(gate)
	done.Wait()
	return slices.Concat(r.history...)
}

// A client is one of the goroutines.
type client struct {
	*run
	id     int
	rand   *rand.Rand
	claims []idem.Claim // by key: the one that it was granted last, perhaps long lost
}

func (c *client) work() {
	events := make([]Event, 0, c.Calls)
	for range c.Calls {
		events = append(events, c.call(c.rand.IntN(c.Keys)))
		if c.rand.IntN(3) == 0 {
			runtime.Gosched() // on few processors clients would otherwise run one after the other
		}
	}
	c.history[c.id] = events
}

// call makes one call on the key with number k.
func (c *client) call(k int) Event {
	e := Event{Client: c.id, Op: c.op(), Key: fmt.Sprint("key", k), Claim: c.claim(k)}
	if e.Claim.Token == 0 && (e.Op == Complete || e.Op == Abandon || e.Op == Extend) {
		e.Op = Begin // there is nothing to finish yet
	}
	ctx := context.Background()
	switch e.Op {
	case Begin:
		e.Claim = idem.Claim{Fingerprint: c.fingerprint()}
		e.Life = c.draw(c.Leases)
		if e.Wait = c.rand.IntN(2) == 0; e.Wait {
			patience := time.Duration(c.rand.Int64N(int64(c.Patience)))
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, patience)
			defer cancel()
		}
	case Extend:
		e.Life = c.draw(c.Leases)
	case Complete, Resolve:
		e.Life = c.draw(c.TTLs)
		e.Status = 1 + c.id + c.Clients*c.rand.IntN(1<<20)
	}
	e.Start = time.Since(c.start)
	c.perform(ctx, &e)
	e.End = time.Since(c.start)
	if e.Op == Begin && e.Outcome.State == idem.Fresh {
		claim := e.Outcome.Claim
		c.claims[k] = claim
		c.run.claims[k].Store(&claim)
	}
	return e
}

// op draws a method: mostly those of the main path.
func (c *client) op() Op {
	of := [...]Op{
		Begin, Begin, Begin, Begin, Begin, Begin, Begin, Begin, Begin,
		Complete, Complete, Complete, Complete,
		Abandon, Abandon, Extend, Extend, Lookup, Lookup, Forget, Resolve,
	}
	op := of[c.rand.IntN(len(of))]
	if slices.Contains(c.Without, op) {
		return Begin
	}
	return op
}

// claim draws one: the client's own, or now and then the one that was granted last to anyone, as
// when a claim is handed to another goroutine to finish.
func (c *client) claim(k int) idem.Claim {
	if latest := c.run.claims[k].Load(); latest != nil && c.rand.IntN(4) == 0 {
		return *latest
	}
	return c.claims[k]
}

// fingerprint draws one of two, mostly the first.
func (c *client) fingerprint() idem.Fingerprint {
	if c.rand.IntN(8) == 0 {
		return idem.Fingerprint{2}
	}
	return idem.Fingerprint{1}
}

func (c *client) draw(from []time.Duration) time.Duration {
	if len(from) == 0 {
		return time.Hour
	}
	return from[c.rand.IntN(len(from))]
}

// perform calls the store and puts the answer into e.
func (c *client) perform(ctx context.Context, e *Event) {
	response := idem.Response{Status: e.Status, Body: body(e.Status), TTL: e.Life}
	switch e.Op {
	case Begin:
		e.Outcome, e.Err = c.store.Begin(ctx, idem.Request{
			Scope: c.Scope, Key: e.Key, Fingerprint: e.Claim.Fingerprint, Lease: e.Life, Wait: e.Wait,
		})
	case Complete:
		e.Err = c.store.Complete(ctx, e.Claim, response)
	case Abandon:
		e.Err = c.store.Abandon(ctx, e.Claim)
	case Extend:
		e.Err = c.store.Extend(ctx, e.Claim, e.Life)
	case Forget:
		e.Found, e.Err = c.store.Forget(ctx, c.Scope, e.Key)
	case Resolve:
		e.Err = c.store.Resolve(ctx, c.Scope, e.Key, response)
	case Lookup:
		var r idem.Record
		r, e.Found, e.Err = c.store.Lookup(ctx, c.Scope, e.Key)
		e.Outcome = idem.Outcome{State: r.State, Response: r.Response, Remaining: r.Remaining}
		e.Outcome.Claim = idem.Claim{Token: r.Token, Fingerprint: r.Fingerprint}
	}
	if got := &e.Outcome.Response; !bytes.Equal(got.Body, body(got.Status)) {
		got.Status = mixedUp
	}
}

// mixedUp stands for a response whose parts do not belong together, which no model expects.
const mixedUp = -1

// body returns what belongs to a status: of many lengths, so that a record may have to move.
func body(status int) []byte {
	return bytes.Repeat([]byte{byte(status)}, status%499)
}
