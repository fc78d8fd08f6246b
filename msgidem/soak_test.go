package msgidem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

const (
	soakSeed     = 5
	soakAttempts = 3 // Config.MaxAttempts: few, so that many messages have more deliveries than that
)

// faults decides, from a seed, what goes wrong.
type faults struct {
	mu   sync.Mutex // guards what follows
	rand *rand.Rand
	hits map[string]int
}

func (f *faults) hit(what string, p float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rand.Float64() >= p {
		return false
	}
	f.hits[what]++
	return true
}

// upTo returns a number of seconds below n, from the seed as well.
func (f *faults) upTo(n int) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.rand.IntN(n)) * time.Second
}

// A soak is what the messages of a TestHeavySoak do, and what came of it.
type soak struct {
	*testing.T
	faults *faults
	engine *idem.Engine

	mu      sync.Mutex // guards what follows
	effects map[string]int
	excused map[string]int // times that a second effect, or a second run at a time, is the store's fault
	running map[string]int
	failed  map[string]int      // runs that did not return nil
	letters map[string][]string // reasons, by ID and payload
	runs    int
}

// A message's ID says what it does: "good", "atomic" (its effect and its record are one step), "poison", "hopeless".
func kind(id string) string { return strings.SplitN(id, "-", 2)[0] }

func (s *soak) handle(ctx context.Context, m msgidem.Message, c idem.Claim) error {
	s.enter(m.ID)
	good := false
	defer func() { s.leave(m.ID, good) }()
	switch {
	case s.faults.hit("slow", 0.01):
		time.Sleep(s.faults.upTo(40)) // past ack wait and lease
	case s.faults.hit("cautious", 0.01):
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Second):
		}
	}
	switch {
	case kind(m.ID) == "poison":
		return idem.Permanent(errDown)
	case kind(m.ID) == "hopeless", s.faults.hit("error", 0.08):
		return errDown
	case s.faults.hit("panic", 0.02):
		panic("boom")
	case s.faults.hit("exit", 0.01):
		runtime.Goexit()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind(m.ID) == "atomic" {
		if err := s.engine.Complete(ctx, c, idem.Response{}); err != nil {
			return err // the transaction is rolled back
		}
	}
	s.effects[m.ID]++
	good = true
	return nil
}

func (s *soak) enter(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.running[id]++
	if s.running[id] > 1+s.excused[id] {
		s.Errorf("%s runs %d times at a time", id, s.running[id])
	}
}

func (s *soak) leave(id string, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id]--
	if !good {
		s.failed[id]++
	}
}

func (s *soak) bury(_ context.Context, l msgidem.DeadLetter) error {
	if s.faults.hit("letter", 0.2) {
		return errDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := l.Message.ID + " " + string(l.Message.Payload)
	s.letters[k] = append(s.letters[k], l.Reason)
	return nil
}

// A frail store fails before or after it has done what it was asked for.
type frail struct {
	idem.Store
	soak *soak
}

func (s *frail) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	if s.soak.faults.hit("begin", 0.02) {
		return idem.Outcome{}, errDown
	}
	return s.Store.Begin(ctx, req)
}

func (s *frail) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	switch {
	case !resp.Failed && s.soak.faults.hit("complete for good", 0.002):
		s.soak.excuse(c.Key)
		return idem.ErrClosed // which is not tried again
	case s.soak.faults.hit("complete", 0.03):
		return errDown
	}
	err := s.Store.Complete(ctx, c, resp)
	if errors.Is(err, idem.ErrClaimLost) {
		s.soak.excuse(c.Key) // the effect was, and the new owner's will be
	}
	if s.soak.faults.hit("complete's reply", 0.02) {
		return errDown
	}
	return err
}

func (s *frail) Abandon(ctx context.Context, c idem.Claim) error {
	if s.soak.faults.hit("abandon", 0.05) {
		return errDown
	}
	return s.Store.Abandon(ctx, c)
}

func (s *frail) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	if s.soak.faults.hit("extend", 0.3) { // often enough for leases to run out under a handler
		s.soak.excuse(c.Key)
		return errDown
	}
	return s.Store.Extend(ctx, c, lease)
}

func (s *soak) excuse(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.excused[id]++
}

// consume is a process that is stopped and started again until the market is empty.
func (s *soak) consume(m *market) {
	for over := false; !over; {
		h, err := msgidem.New(&frail{s.engine, s}, s.handle, msgidem.Config{
			Workers: 32, MaxAttempts: soakAttempts, DrainTimeout: 2 * time.Second, DeadLetter: s.bury,
			Backoff: func(int) time.Duration { return time.Second },
		})
		require.NoError(s, err)
		ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second+s.faults.upTo(30))
		err = h.Run(ctx, m)
		if err != nil && !errors.Is(err, msgidem.ErrStuck) {
			s.Errorf("Run: %v", err)
		}
		over = ctx.Err() == nil // so the market ended
		cancel()
	}
}

// fill publishes n messages: some twice, some with another payload under an ID that was used.
func (s *soak) fill(m *market, n int) {
	for i := 0; i < n; i++ {
		name := "good"
		switch {
		case i%2 == 0:
			name = "atomic"
		case i%301 == 0:
			name = "poison"
		case i%501 == 0:
			name = "hopeless"
		}
		msg := msgidem.Message{ID: fmt.Sprint(name, "-", i), Scope: "soak", Payload: []byte("pay")}
		m.publish(msg)
		if s.faults.hit("twice", 0.1) {
			m.publish(msg)
			i++
		}
		if s.faults.hit("mismatch", 0.01) {
			msg.Payload = []byte("steal")
			m.publish(msg)
			i++
		}
	}
}

func TestHeavySoak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := idem.New(idem.Config{Lease: 15 * time.Second, TTL: 1000 * time.Hour})
		require.NoError(t, err)
		defer func() { _ = engine.Close() }()
		s := &soak{
			T: t, engine: engine, faults: &faults{rand: rand.New(rand.NewPCG(soakSeed, 0)), hits: map[string]int{}},
			effects: map[string]int{}, excused: map[string]int{}, running: map[string]int{}, failed: map[string]int{}, letters: map[string][]string{},
		}
		m := newMarket(s.faults, 10*time.Second)
		s.fill(m, 200_000)
		var consumers sync.WaitGroup
		for range 4 {
			consumers.Go(func() { s.consume(m) })
		}
		consumers.Wait()
		synctest.Wait()
		s.check(m)
		t.Logf("%d messages, %d deliveries, %d runs, %d dead letters, faults: %v",
			len(m.parcels), m.deliver, s.runs, len(s.letters), s.faults.hits)
	})
}

// check looks at the end whether every message was settled as it should be.
func (s *soak) check(m *market) {
	// Which of two payloads came first under an ID is chance; the other one is the mismatch. The one that was
	// handled may have a letter too: it was a mismatch before the other one failed, and the broker missed that.
	owner := map[string]string{}
	for _, p := range m.parcels {
		if p.settled == "ack" {
			owner[p.msg.ID] = string(p.msg.Payload)
		}
	}
	for _, p := range m.parcels {
		id, letters := p.msg.ID, s.letters[p.msg.ID+" "+string(p.msg.Payload)]
		require.NotEmpty(s, p.settled, id)
		rec, ok, err := s.engine.Lookup(s.Context(), "soak", id)
		require.NoError(s, err)
		require.True(s, ok && rec.State == idem.Replay, "%s was settled and is not recorded", id)
		switch {
		case kind(id) == "poison" || kind(id) == "hopeless":
			require.NotEmpty(s, letters, id)
			require.True(s, rec.Response.Failed, id)
			require.Zero(s, s.effects[id], id)
			require.Equal(s, "term", p.settled, id)
		case rec.Response.Failed: // attempts used up, most of them by processes that were stopped, the last by a failure
			require.NotEmpty(s, letters, id)
			require.Positive(s, s.failed[id], "%s never failed and is a dead letter: %v", id, letters)
		case owner[id] != string(p.msg.Payload):
			require.NotEmpty(s, letters, id)
			require.Contains(s, letters[0], "fingerprint", id)
			require.Equal(s, "term", p.settled, id)
		default:
			require.Equal(s, "ack", p.settled, id)
			require.GreaterOrEqual(s, s.effects[id], 1, "%s is lost", id)
			require.LessOrEqual(s, s.effects[id], 1+s.excused[id], "%s happened again", id)
			require.True(s, kind(id) != "atomic" || s.effects[id] == 1, id)
		}
	}
}
