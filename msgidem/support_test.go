package msgidem_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

const everything = msgidem.CanNak | msgidem.CanDelay | msgidem.CanTerm | msgidem.CanHeartbeat

var errDown = errors.New("it is down")

// A delivery is one that notes what it is told.
type delivery struct {
	msg msgidem.Message
	can msgidem.Capability

	mu     sync.Mutex // guards what follows
	calls  []string   // "ack", "nak", "term", "beat"
	delay  time.Duration
	reason string
	hook   func(op string) error // of every call
}

func (d *delivery) Message() msgidem.Message        { return d.msg }
func (d *delivery) Can() msgidem.Capability         { return d.can }
func (d *delivery) Ack(context.Context) error       { return d.note("ack") }
func (d *delivery) Heartbeat(context.Context) error { return d.note("beat") }

func (d *delivery) NakAfter(_ context.Context, delay time.Duration) error {
	err := d.note("nak")
	d.delay = delay
	return err
}

func (d *delivery) Term(_ context.Context, reason string) error {
	err := d.note("term")
	d.reason = reason
	return err
}

func (d *delivery) note(op string) error {
	d.mu.Lock()
	d.calls = append(d.calls, op)
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		return hook(op)
	}
	return nil
}

// told returns what the broker was told, heartbeats apart.
func (d *delivery) told() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(op string) bool { return op == "beat" })
}

func (d *delivery) beats() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls) - len(slices.DeleteFunc(slices.Clone(d.calls), func(op string) bool { return op == "beat" }))
}

// message is a delivery of the message that most tests are about.
func message(attempt int) *delivery {
	return &delivery{can: everything, msg: msgidem.Message{
		ID: "m1", Scope: "billing", Payload: []byte("pay 7"), Attempt: attempt, AckWait: 30 * time.Second,
	}}
}

// A tampered store is one whose calls can be looked at and made fail. A hook that returns nil lets the call
// through.
type tampered struct {
	idem.Store
	mu    sync.Mutex
	count map[string]int
	hook  func(ctx context.Context, op string, n int) error
}

func (s *tampered) call(ctx context.Context, op string) error {
	s.mu.Lock()
	s.count[op]++
	n := s.count[op]
	s.mu.Unlock()
	if s.hook != nil {
		return s.hook(ctx, op, n)
	}
	return nil
}

func (s *tampered) calls(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[op]
}

func (s *tampered) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if err := s.call(ctx, "begin"); err != nil {
		return idem.Outcome{}, err
	}
	return s.Store.Begin(ctx, req)
}

func (s *tampered) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if err := s.call(ctx, "complete"); err != nil {
		return err
	}
	return s.Store.Complete(ctx, c, resp)
}

func (s *tampered) Abandon(ctx context.Context, c idem.Claim) error {
	if err := s.call(ctx, "abandon"); err != nil {
		return err
	}
	return s.Store.Abandon(ctx, c)
}

func (s *tampered) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	if err := s.call(ctx, "extend"); err != nil {
		return err
	}
	return s.Store.Extend(ctx, c, lease)
}

// failing returns a hook that fails op, from its first call to its last.
func failing(op string, last int, err error) func(context.Context, string, int) error {
	return func(_ context.Context, called string, n int) error {
		if called == op && n <= last {
			return err
		}
		return nil
	}
}

// A rig is a handler on an engine, in a bubble of fake time.
type rig struct {
	*testing.T
	engine  *idem.Engine
	store   *tampered
	handler *msgidem.Handler
	mu      sync.Mutex // guards runs while handlers run
	runs    int
	letters []msgidem.DeadLetter
	hookErr error // of the hook for dead letters
	cfg     msgidem.Config
	fn      msgidem.Func
}

// bubble runs a test with a rig of its own. Its handler succeeds, unless the test sets another one.
func bubble(t *testing.T, name string, test func(r *rig)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(newRig(t, idem.Config{})) })
	})
}

func newRig(t *testing.T, engine idem.Config) *rig {
	r := &rig{T: t}
	var err error
	r.engine, err = idem.New(engine)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.engine.Close() })
	r.store = &tampered{Store: r.engine, count: map[string]int{}}
	r.fn = func(context.Context, msgidem.Message, idem.Claim) error { return nil }
	r.cfg.DeadLetter = func(_ context.Context, l msgidem.DeadLetter) error {
		if r.hookErr == nil {
			r.letters = append(r.letters, l)
		}
		return r.hookErr
	}
	return r
}

// handle gives the handler one delivery.
func (r *rig) handle(d msgidem.Delivery) msgidem.Outcome {
	return r.start().Handle(r.Context(), d)
}

// start makes the handler when it is first needed: the test has set its Config by then.
func (r *rig) start() *msgidem.Handler {
	if r.handler == nil {
		var err error
		r.handler, err = msgidem.New(r.store, func(ctx context.Context, m msgidem.Message, c idem.Claim) error {
			r.mu.Lock()
			r.runs++
			r.mu.Unlock()
			return r.fn(ctx, m, c)
		}, r.cfg)
		require.NoError(r, err)
	}
	return r.handler
}

// record returns what the store has about m1.
func (r *rig) record() (idem.Record, bool) {
	rec, ok, err := r.engine.Lookup(r.Context(), "billing", "m1")
	require.NoError(r, err)
	return rec, ok
}

// own claims m1 for somebody else.
func (r *rig) own(lease time.Duration) idem.Claim {
	out, err := r.engine.Begin(r.Context(), idem.Request{
		Scope: "billing", Key: "m1", Fingerprint: idem.FingerprintOf([]byte("pay 7")), Lease: lease,
	})
	require.NoError(r, err)
	require.Equal(r, idem.Fresh, out.State)
	return out.Claim
}

// returning is a handler that returns errs, one after the other, and then nil.
func returning(errs ...error) msgidem.Func {
	return func(context.Context, msgidem.Message, idem.Claim) (err error) {
		if len(errs) > 0 {
			err, errs = errs[0], errs[1:]
		}
		return err
	}
}

// lasting is a handler that takes d and returns nil, whatever its ctx says.
func lasting(d time.Duration) msgidem.Func {
	return func(context.Context, msgidem.Message, idem.Claim) error {
		time.Sleep(d)
		return nil
	}
}
