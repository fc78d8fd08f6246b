package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"golang.org/x/sync/errgroup"
)

// short is the lease or the TTL of the steps that wait for one to run out: long enough to be there
// when the next call is made, short enough not to bore the reader.
const short = 40 * time.Millisecond

// waiting is how many duplicates wait for one owner in the last step.
const waiting = 8

// A step is one line of the tour: its name, and what the engine really answered. The line is made from the
// answer and only then compared with want, so that what is printed is never what was merely expected.
type step struct {
	name string
	want string // any other answer fails the tour
	run  func(*tour, context.Context) (string, error)
}

// steps are in the order of the rules that they show, from the one everybody expects of idempotency to
// those that are easily forgotten. The first three share an order; the others have one each.
var steps = []step{
	{"first request", "fresh", (*tour).first},
	{"duplicate while running", "in progress", (*tour).duplicate},
	{"replay", `201 {"id":1}`, (*tour).replay},
	{"abandoned key begun again", "fresh", (*tour).abandoned},
	{"TTL run out", "fresh", (*tour).expired},
	{"lease of a dead owner run out", "taken over", (*tour).takenOver},
	{"late Complete of the dead owner", "refused, idem: claim lost", (*tour).late},
	{"same key, other payload", "mismatch", (*tour).mismatch},
	{"8 duplicates that wait", `each got the owner's 201 {"id":2}`, (*tour).wait},
}

// A tour carries what later steps need of earlier ones.
type tour struct {
	engine *idem.Engine
	owner  idem.Claim // of the first request
	dead   idem.Claim // of the owner whose lease ran out
}

// runTour prints every step to w. It fails at the first answer that breaks the contract, after
// printing it: what follows would build on it.
func runTour(ctx context.Context, w io.Writer, e *idem.Engine) error {
	t := &tour{engine: e}
	for _, s := range steps {
		got, err := s.run(t, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(w, "%s: %s\n", s.name, got)
		if got != s.want {
			return fmt.Errorf("%s: got %q, want %q", s.name, got, s.want)
		}
	}
	return nil
}

// first claims an order. Its owner runs until replay completes it.
func (t *tour) first(ctx context.Context) (string, error) {
	out, err := t.engine.Begin(ctx, order(1))
	t.owner = out.Claim
	return describe(out), err
}

// duplicate asks for the same order while its owner runs.
func (t *tour) duplicate(ctx context.Context) (string, error) { return t.begin(ctx, order(1)) }

// replay completes the order and asks for it once more.
func (t *tour) replay(ctx context.Context) (string, error) {
	if err := t.engine.Complete(ctx, t.owner, created(1)); err != nil {
		return "", err
	}
	return t.begin(ctx, order(1))
}

// abandoned gives a claim up, as an owner does whose operation failed before it had an effect.
func (t *tour) abandoned(ctx context.Context) (string, error) {
	claim, err := t.claim(ctx, order(2))
	if err == nil {
		err = t.engine.Abandon(ctx, claim)
	}
	if err != nil {
		return "", err
	}
	return t.begin(ctx, order(2))
}

// expired completes with a short TTL and comes back when it has run out. That a replay lasts until then is
// not shown: on a busy machine the demo might be too late for it.
func (t *tour) expired(ctx context.Context) (string, error) {
	claim, err := t.claim(ctx, order(3))
	if err == nil {
		resp := created(3)
		resp.TTL = short
		err = t.engine.Complete(ctx, claim, resp)
	}
	if err == nil {
		err = pause(ctx, short)
	}
	if err != nil {
		return "", err
	}
	return t.begin(ctx, order(3))
}

// takenOver lets the first owner's lease run out as if its process had died. The new owner's token must be
// the higher one, or a downstream system could not tell the two apart.
func (t *tour) takenOver(ctx context.Context) (string, error) {
	req := order(4)
	req.Lease = short
	dead, err := t.claim(ctx, req)
	if err == nil {
		t.dead = dead
		err = pause(ctx, short)
	}
	if err != nil {
		return "", err
	}
	out, err := t.engine.Begin(ctx, order(4))
	if out.State == idem.Fresh && out.Claim.Token > dead.Token {
		return "taken over", nil
	}
	return describe(out), err
}

// late lets the dead owner of takenOver come back to life and complete what is no longer its own.
func (t *tour) late(ctx context.Context) (string, error) {
	err := t.engine.Complete(ctx, t.dead, created(4))
	if errors.Is(err, idem.ErrClaimLost) {
		return "refused, " + err.Error(), nil
	}
	return "accepted", err
}

// mismatch uses the first order's key for something else. The engine tells it from a retry by the
// fingerprint alone; it never sees the payload.
func (t *tour) mismatch(ctx context.Context) (string, error) {
	req := order(1)
	req.Fingerprint = idem.FingerprintOf([]byte("another amount"))
	return t.begin(ctx, req)
}

// wait blocks duplicates behind an owner, completes once all of them sleep, and compares what they
// got. The time limit is for an engine that does not let them sleep.
func (t *tour) wait(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	claim, err := t.claim(ctx, order(5))
	if err != nil {
		return "", err
	}
	group, ctx := errgroup.WithContext(ctx)
	answers := make([]string, waiting)
	for i := range answers {
		group.Go(func() (err error) {
			req := order(5)
			req.Wait = true
			answers[i], err = t.begin(ctx, req)
			return err
		})
	}
	for err == nil && t.engine.Stats().Waiting < waiting {
		err = pause(ctx, time.Millisecond) // a waiter that fails ends ctx, and so this loop
	}
	if err == nil {
		err = t.engine.Complete(ctx, claim, created(2))
	}
	if err = errors.Join(err, group.Wait()); err != nil {
		return "", err
	}
	for _, a := range answers {
		if a != answers[0] {
			return fmt.Sprintf("different answers: %q", answers), nil
		}
	}
	return "each got the owner's " + answers[0], nil
}

// begin puts the outcome of one Begin into words.
func (t *tour) begin(ctx context.Context, req idem.Request) (string, error) {
	out, err := t.engine.Begin(ctx, req)
	return describe(out), err
}

// claim is for a step whose line begins later: anything but a claim is an error.
func (t *tour) claim(ctx context.Context, req idem.Request) (idem.Claim, error) {
	out, err := t.engine.Begin(ctx, req)
	if err == nil && out.State != idem.Fresh {
		err = fmt.Errorf("%s is %v, want fresh", req.Key, out.State)
	}
	return out.Claim, err
}

// order is the request of a client that pays for order n. Its key stands for the payload too.
func order(n int) idem.Request {
	key := fmt.Sprintf("order-%d", n)
	return idem.Request{Scope: "tour", Key: key, Fingerprint: idem.FingerprintOf([]byte(key))}
}

// created is the response to the payment with the given id.
func created(id int) idem.Response {
	return idem.Response{Status: 201, Body: fmt.Appendf(nil, `{"id":%d}`, id)}
}

// describe puts an outcome into words: a replay is its response, the others are their state.
func describe(out idem.Outcome) string {
	if out.State == idem.Replay {
		return fmt.Sprintf("%d %s", out.Response.Status, out.Response.Body)
	}
	return out.State.String()
}

// pause returns after d, or with the cause when ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
