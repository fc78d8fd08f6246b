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
	"context"
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

	// Grace is for a store on a server. When the ctx of a Begin ends while the server is asked, the claim that
	// it may have been granted, or is yet to be, is nobody's; the store gives it up within Grace after Begin has
	// returned. Until then the key may be taken by a claim as it asked for. In return no claim passes to a waiter
	// that does not know of it: those of such a store look for themselves. Zero means a store in this process,
	// where a Begin that fails leaves nothing behind.
	Grace time.Duration
}

// An event is an [Event] beside the others on its key.
type event struct {
	Event
	met    bool     // another caller waited for the key at some time during the call, and may have been handed the claim
	strays []*stray // that may have held the key at some time during the call
}

// A stray is a claim that may have been granted to Begins which did not learn of it. Those that asked for the same are one
// stray, as it is not said which of them holds the key; each by itself would make the search exponential.
type stray struct {
	id          int // above zero
	fingerprint idem.Fingerprint
	lease       time.Duration
	spans       []span
}

// A span is the time within which one Begin's claim may hold the key.
type span struct{ start, end time.Duration }

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
	strays := m.strays(events)
	ops := make([]porcupine.Operation, len(events))
	for i, e := range events {
		input := &event{Event: e}
		input.met = m.Grace == 0 && slices.ContainsFunc(events, func(w Event) bool {
			return w.Wait && w.Client != e.Client && w.Start <= e.End && w.End >= e.Start
		})
		for _, s := range strays {
			if slices.ContainsFunc(s.spans, func(t span) bool { return t.start <= e.End && t.end >= e.Start }) {
				input.strays = append(input.strays, s)
			}
		}
		ops[i] = porcupine.Operation{ClientId: e.Client, Input: input, Call: int64(e.Start), Return: int64(e.End)}
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

// strays returns the claims that a key's Begins may have left behind.
func (m Model) strays(events []Event) (all []*stray) {
	if m.Grace == 0 {
		return nil
	}
	for _, e := range events {
		if e.Op != Begin || !left(e.Err) {
			continue
		}
		i := slices.IndexFunc(all, func(s *stray) bool { return s.fingerprint == e.Claim.Fingerprint && s.lease == e.Life })
		if i < 0 {
			i = len(all)
			all = append(all, &stray{id: i + 1, fingerprint: e.Claim.Fingerprint, lease: e.Life})
		}
		all[i].spans = append(all[i].spans, span{e.Start, e.End + m.Grace})
	}
	return all
}

// left reports whether err is that of a caller whose ctx ended.
func left(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// granted returns the first and the last moment at which the claim may have been granted.
func (s *stray) granted() (first, last time.Duration) {
	first = s.spans[0].start
	for _, t := range s.spans {
		first, last = min(first, t.start), max(last, t.end)
	}
	return first, last
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
