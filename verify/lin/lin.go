// Package lin tests whether a store is linearizable. Clients call the store at the same time; each
// call is recorded with what it was given and what it answered; then porcupine looks for an order of
// the calls in which every one takes effect at a single moment between its start and its end and
// every answer is what the contract says. If there is none, the store is at fault.
//
//	w := lin.Workload{Scope: "run 1", Seed: 1}
//	err := lin.Model{Policy: idem.TakeOver}.Check(w.Record(store))
//
// Time is a part of the check. The moment at which a lease or a TTL ends is known as closely as the
// call that set it was short. A call that starts after the last possible moment must find it ended,
// and one that returns before the first possible moment must not.
//
// What linearizability does not cover is left to other tests: that waiters are served in their order,
// and that a waiter is woken soon.
package lin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-5bb5eb37/idem"
)

// A Store is what is tested: the contract and the look inside that every store of ours offers.
type Store interface {
	idem.Store
	idem.Inspector
}

// ErrIllegal is [Model.Check]'s answer when no order of a history's calls explains their answers.
var ErrIllegal = errors.New("lin: history is not linearizable")

// patience is how long porcupine may look for an order. Histories of the default size take it well
// under a millisecond; they are small because the search can be exponential.
const patience = 30 * time.Second

// A Model says what the contract leaves open.
type Model struct {
	// Policy is the store's answer to a lease that ran out.
	Policy idem.LeasePolicy

	// Lease is the store's default. It is what a claim lasts that has passed to a waiter, until the
	// waiter has come to take it. Zero means 30 s.
	Lease time.Duration

	// Slack is how far the store may be off in the time of one call: the granularity of its clock.
	// Zero means that it counts nanoseconds, like this process.
	Slack time.Duration
}

// An event is an [Event] beside the others on its key.
type event struct {
	Event
	met bool // another caller waited for the key at some time during the call
}

// Check returns nil if an order of the calls explains the history. Otherwise the error is ErrIllegal
// and lists the calls on one key that do not fit together.
func (m Model) Check(history []Event) error {
	if err := checkTokens(history); err != nil {
		return err
	}
	byKey := map[string][]Event{}
	for _, e := range history {
		byKey[e.Key] = append(byKey[e.Key], e)
	}
	// Keys have nothing in common but the tokens, so that each is a history of its own.
	for _, events := range byKey {
		if err := m.checkKey(events); err != nil {
			return err
		}
	}
	return nil
}

func (m Model) checkKey(events []Event) error {
	m.Lease = cmp.Or(m.Lease, 30*time.Second)
	ops := make([]porcupine.Operation, len(events))
	for i, e := range events {
		met := slices.ContainsFunc(events, func(w Event) bool {
			return w.Wait && w.Client != e.Client && w.Start <= e.End && w.End >= e.Start
		})
		ops[i] = porcupine.Operation{ClientId: e.Client, Input: &event{e, met}, Call: int64(e.Start), Return: int64(e.End)}
	}
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, input, _ any) []any { return m.step(s.(state), input.(*event)) },
		Hash: func(s any) uint64 { return s.(state).hash() },
	}
	switch porcupine.CheckOperationsTimeout(model.ToModel(), ops, patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("%w:\n%s", ErrIllegal, list(events))
	default:
		return fmt.Errorf("lin: no verdict within %v on:\n%s", patience, list(events))
	}
}

// checkTokens holds the whole store to its promise that tokens grow: no two claims have the same, and
// one that was granted by a call that began after another's had returned has the higher. (On one key it
// is a matter of the model; for all keys porcupine would have to take them together.) A waiter can
// begin to wait when the token of the claim that it will get is already there.
func checkTokens(history []Event) error {
	token := func(e Event) uint64 { return e.Outcome.Claim.Token }
	granted := slices.DeleteFunc(slices.Clone(history), func(e Event) bool {
		return e.Op != Begin || e.Outcome.State != idem.Fresh
	})
	slices.SortFunc(granted, func(a, b Event) int { return cmp.Compare(token(a), token(b)) })
	var latest Event // to begin, among those with lower tokens
	for i, e := range granted {
		if i > 0 && token(granted[i-1]) == token(e) {
			return fmt.Errorf("%w: one token granted twice:\n%s", ErrIllegal, list([]Event{granted[i-1], e}))
		}
		if e.End < latest.Start {
			return fmt.Errorf("%w: the later claim has the lower token:\n%s", ErrIllegal, list([]Event{e, latest}))
		}
		if !e.Wait && e.Start > latest.Start {
			latest = e
		}
	}
	return nil
}

func list(events []Event) string {
	sorted := slices.SortedFunc(slices.Values(events), func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
	var b strings.Builder
	b.WriteString("  start µs     end µs\n")
	for _, e := range sorted {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}
