package main

import (
	"slices"
	"sync"
	"time"
)

// kept is how many charges a ledger remembers one by one: the page shows the last few, and a payment
// can be fetched while it is among them. The counts go on for ever.
const kept = 10_000

// A ledger is the effect that must happen once: the list of charges. It charges whoever asks, as often
// as it is asked; keeping duplicates away from it is the work of the packages that are shown here.
type ledger struct {
	mu     sync.Mutex
	count  int            // the number of the last charge
	before int            // of them, those of earlier runs
	orders map[string]int // how often each order was charged
	recent []charge       // the last charges, oldest first: at least kept of them, below twice as many
}

// A charge is one line of the ledger, and the JSON of the API's answers.
type charge struct {
	ID    int       `json:"id"`
	Kind  string    `json:"kind"` // payment or capture
	Order string    `json:"order"`
	Cents int       `json:"cents"`
	At    time.Time `json:"at"`
}

func newLedger() *ledger { return &ledger{orders: make(map[string]int)} }

// charge takes the money and returns the line that says so. It sets the line's ID and At. Of the lines it
// drops half at a time, so that appending stays cheap.
func (l *ledger) charge(c charge) charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.orders[c.Order]++
	c.ID, c.At = l.count, time.Now()
	if len(l.recent) == 2*kept-1 {
		l.recent = append(l.recent[:0], l.recent[kept:]...)
	}
	l.recent = append(l.recent, c)
	return c
}

// goOnFrom makes the first charge's number come after last, which an earlier run gave.
func (l *ledger) goOnFrom(last int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = max(l.before, last)
	l.count = l.before
}

// total returns how many charges were made. Those of earlier runs do not count, since their lines are gone.
func (l *ledger) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count - l.before
}

// of returns how often the order was charged. It goes on being right when the charges are forgotten.
func (l *ledger) of(order string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orders[order]
}

// find returns the charge with the number id, unless it is too old or was never made. The numbers have no
// gaps, so that a charge's place follows from its number.
func (l *ledger) find(id int) (charge, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := id - 1 - (l.count - len(l.recent))
	if i < 0 || i >= len(l.recent) {
		return charge{}, false
	}
	return l.recent[i], true
}

// last returns up to n charges, newest first.
func (l *ledger) last(n int) []charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.recent))
	out := make([]charge, 0, n)
	for i := range n {
		out = append(out, l.recent[len(l.recent)-1-i])
	}
	return out
}

// lastOf returns the order's last charge, if it is still remembered. It looks at one after the other: an
// index would be more than a demo's captures are worth.
func (l *ledger) lastOf(order string) (charge, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range slices.Backward(l.recent) {
		if c.Order == order {
			return c, true
		}
	}
	return charge{}, false
}
