package main

import (
	"context"
	"fmt"

	"github.com/seed-5bb5eb37/idem"
)

// An audit compares the charges with the records. Its lists are of orders.
type audit struct {
	once       []string
	takenOver  []string // charged once more by another server, after their own had died
	rolledBack []string // of those charged once: the dead server's charge was undone
	unknown    []string // that the dead server had in hand, and nobody may touch
	broken     []string // promises that were not kept, in words
}

// An account is all that is known about one order.
type account struct {
	record  idem.Record
	found   bool
	charges []charge
	tries   []charge // that reached the ledger
}

// review looks at all orders. Who charged them is in the database with Postgres, where a charge that was rolled
// back is none, and in the ledger with Redis, where what was charged stays charged. Dead is the server that was
// killed; its successor has another name.
func (f *fleet) review(ctx context.Context, b *books, orders []string, written []charge, dead string) (audit, error) {
	charges := written
	if b.postgres != nil {
		var err error
		if charges, err = b.charged(ctx); err != nil {
			return audit{}, err
		}
	}
	byOrder := func(all []charge) map[string][]charge {
		m := make(map[string][]charge)
		for _, c := range all {
			m[c.Order] = append(m[c.Order], c)
		}
		return m
	}
	charged, tried := byOrder(charges), byOrder(written)
	var a audit
	for _, order := range orders {
		record, found, err := b.store.Lookup(ctx, scope, order)
		if err != nil {
			return audit{}, err
		}
		a.add(order, account{record, found, charged[order], tried[order]}, dead, f.promise())
	}
	return a, nil
}

// A promise is how often an order may be charged that a dead server had in hand.
type promise struct {
	chargedTwice bool // the dead server's charge may stand beside another's
	unknown      bool // it may be left to a person
}

func (f *fleet) promise() promise {
	return promise{
		chargedTwice: f.Store == redisStore && f.Policy == idem.TakeOver,
		unknown:      f.Policy == idem.Hold,
	}
}

// add judges one order. What the dead server had in hand are its charges under another token than the record's.
func (a *audit) add(order string, acc account, dead string, allowed promise) {
	recorded, lost, other := acc.count(acc.charges, dead)
	_, died, alive := acc.count(acc.tries, dead) // under other tokens than the record's
	switch state := acc.record.State; {
	case !acc.found || state == idem.InProgress:
		a.breaks("%s has no result", order)
	case state == idem.Unknown && !allowed.unknown:
		a.breaks("%s is unknown", order)
	case state == idem.Unknown && alive > 0:
		// A claim that no server told of was the dead one's, too: the others live to tell.
		a.breaks("%s is unknown though its server lives", order)
	case other > 0 || recorded > 1 || lost > 1:
		a.breaks("%s was charged %d times", order, len(acc.charges))
	case state == idem.Unknown:
		a.unknown = append(a.unknown, order)
	case recorded == 0:
		a.breaks("%s was recorded but not charged", order)
	case lost > 0 && !allowed.chargedTwice:
		a.breaks("%s was charged by the server that died and again", order)
	case lost > 0:
		a.takenOver = append(a.takenOver, order)
	default:
		a.once = append(a.once, order)
		if died > 0 {
			a.rolledBack = append(a.rolledBack, order)
		}
	}
}

// count tells apart what the record stands for, what the dead server had in hand, and anything else.
func (acc *account) count(all []charge, dead string) (recorded, lost, other int) {
	for _, c := range all {
		switch {
		case acc.found && acc.record.State == idem.Replay && c.Token == acc.record.Token:
			recorded++
		case c.Server == dead:
			lost++
		default:
			other++
		}
	}
	return recorded, lost, other
}

func (a *audit) breaks(format string, args ...any) {
	a.broken = append(a.broken, fmt.Sprintf(format, args...))
}
