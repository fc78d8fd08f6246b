package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/progress"
)

const (
	// maxTries bounds a client's patience; a server that never answers must not keep the demo running.
	maxTries = 25

	// patience is about how long a client waits for its first answer, and how long it then pauses. Each
	// try doubles it, up to maxPatience: on a slow machine too, all clients get through in the end.
	patience    = 25 * time.Millisecond
	maxPatience = 2 * time.Second
)

// A storm sends every order from many clients at once. They share the order's key, give up soon, and
// try again until they have the answer.
type storm struct {
	orders, clients int
	seed            uint64 // of every random choice; when things happen is up to the machine all the same
}

// run serves shop on loopback, sends the storm to it and prints what happened. It fails if an order was
// charged twice, was not charged, or if its clients got different answers.
func (s *storm) run(ctx context.Context, stdout, stderr io.Writer, e *idem.Engine, books *ledger, shop http.Handler) error {
	server, err := listen("127.0.0.1:0", shop)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "storm: %s orders × %d clients to %s\n", grouped(s.orders), s.clients, server.url)
	t := &tally{start: time.Now()}
	stop := progress.Show(stderr, func() string {
		return fmt.Sprintf("storm: %s of %s orders charged, %s requests",
			grouped(books.total()), grouped(s.orders), grouped(t.sent()))
	})
	sendErr := s.send(ctx, server.url, t)
	took := time.Since(t.start)
	stop()
	// The books are read only when no handler runs any more: one whose client left may still charge.
	if err := server.shut(); err != nil {
		return errors.Join(sendErr, err)
	}
	v := s.judge(books, t)
	printTable(stdout, t.rows(e.Stats(), v, books.total(), took))
	return v.err(sendErr)
}

// send sends all orders and notes how many had clients that got different answers.
func (s *storm) send(ctx context.Context, url string, t *tally) error {
	client, closeIdle := stormClient(inFlight)
	defer closeIdle()
	// Each client has dice of its own: they would stand in a queue for shared ones, in step.
	different, err := crowd(ctx, s.orders, s.clients, func(ctx context.Context, n, i int) (string, error) {
		p := payer{
			client: client, url: url, order: orderName(n), tally: t,
			dice: rand.New(rand.NewPCG(s.seed, uint64(n*s.clients+i+1))),
		}
		return p.pay(ctx)
	})
	t.different = different
	return err
}

// A verdict counts the orders that went wrong: charged more than once, not charged, or with clients that
// got different answers.
type verdict struct{ twice, never, different int }

// judge goes through the books order by order. The right total would not do: one order charged twice and
// another not at all make up for each other.
func (s *storm) judge(books *ledger, t *tally) verdict {
	v := verdict{different: t.different}
	for n := range s.orders {
		switch books.of(orderName(n)) {
		case 0:
			v.never++
		case 1:
		default:
			v.twice++
		}
	}
	return v
}

// err returns what to fail with, given how sending ended. Wrong charges outweigh everything else;
// that all orders were charged can be asked only if all were sent.
func (v verdict) err(sent error) error {
	if sent != nil {
		v.never = 0
	}
	if v == (verdict{}) {
		return sent
	}
	return fmt.Errorf("orders charged more than once: %d, not charged: %d, with different answers: %d",
		v.twice, v.never, v.different)
}

// orderName is how order n is called in the books, and its idempotency key.
func orderName(n int) string { return fmt.Sprintf("order-%d", n) }

// A payer is one client of one order, such as a phone whose owner taps "pay" again, or one of the many
// layers between it and the server that retry by themselves.
type payer struct {
	client *http.Client
	url    string
	order  string // also its idempotency key
	tally  *tally
	dice   *rand.Rand
}

// pay sends the order until it is answered with a result, and returns that.
func (p *payer) pay(ctx context.Context) (string, error) {
	start := time.Now()
	limit := patience
	for range maxTries {
		answer, err := p.try(ctx, p.around(limit))
		if err != nil || answer != "" {
			p.tally.note(func() { p.tally.paid = append(p.tally.paid, time.Since(start)) })
			return answer, err
		}
		if err := pause(ctx, p.around(limit)); err != nil {
			return "", err
		}
		limit = min(2*limit, maxPatience)
	}
	return "", fmt.Errorf("%s: no result after %d tries", p.order, maxTries)
}

// around returns a random duration from half of d to one and a half of it: clients that keep in step
// would meet the server only together.
func (p *payer) around(d time.Duration) time.Duration {
	return d/2 + time.Duration(p.dice.Int64N(int64(d)))
}

// try sends the order once, and gives up after limit. An empty answer means that the client may try again.
// Half of the tries, at random, ask the server to let a duplicate wait.
func (p *payer) try(ctx context.Context, limit time.Duration) (string, error) {
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(attempt, http.MethodPost, p.url, strings.NewReader(p.order))
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", p.order)
	if p.dice.IntN(2) == 0 {
		req.Header.Set("Prefer", "wait")
	}
	p.tally.note(func() { p.tally.requests++ })
	start := time.Now()
	resp, err := p.client.Do(req)
	if err != nil {
		return "", p.failed(ctx, err)
	}
	body, err := bodyOf(resp)
	if err != nil {
		return "", p.failed(ctx, err)
	}
	return p.tally.answered(resp, body, time.Since(start))
}

// failed sorts out why a request got no answer: the demo ends, this client's patience ended, or the
// network failed. Only the second is part of the game.
func (p *payer) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		p.tally.note(func() { p.tally.gaveUp++ })
		return nil
	default:
		return err
	}
}

// A tally counts what the clients saw. What only the engine can know is in its Stats.
type tally struct {
	start time.Time

	mu        sync.Mutex // guards what follows while the storm runs
	requests  int
	first     int // results of the request that ran
	replays   int
	busy      int // in-progress answers
	failures  int // the card network failed
	gaveUp    int
	different int             // orders whose clients got different answers
	latency   []time.Duration // of the requests that were answered
	paid      []time.Duration // from a client's first try to its result
}

// note calls change with the tally locked.
func (t *tally) note(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
}

func (t *tally) sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests
}

// answered counts an answer. It returns the body of a result, and "" if the client should try again.
func (t *tally) answered(resp *http.Response, body string, took time.Duration) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latency = append(t.latency, took)
	switch {
	case resp.StatusCode == http.StatusConflict:
		t.busy++
		return "", nil
	case resp.StatusCode == http.StatusBadGateway:
		t.failures++
		return "", nil
	case resp.StatusCode != http.StatusCreated:
		return "", fmt.Errorf("unexpected answer %s: %s", resp.Status, strings.TrimSpace(body))
	case resp.Header.Get("Idempotency-Replayed") != "":
		t.replays++
	default:
		t.first++
	}
	return body, nil
}

// rows puts the tally, and what only the engine and the verdict know, into a table. It is called when the
// storm is over, and sorts the latencies.
func (t *tally) rows(stats idem.Stats, v verdict, charges int, took time.Duration) []row {
	return []row{
		{"requests", grouped(t.requests), fmt.Sprintf("in %.1f s", took.Seconds())},
		{"charges made", grouped(charges), fmt.Sprintf("%d orders charged twice, %d never", v.twice, v.never)},
		{"replays", grouped(t.replays), "answered with the recorded result"},
		{"waits", grouped(int(stats.Waited)), "duplicates that slept until the owner was done"},
		{"in-progress answers", grouped(t.busy), "409, come back later"},
		{"clients gave up", grouped(t.gaveUp), "and tried again with the same key"},
		{"failed before charging", grouped(t.failures), "502, the next request began again"},
		{"one request p50 / p99", quantiles(t.latency), "of those that were answered"},
		{"one client p50 / p99", quantiles(t.paid), "from its first try to its result"},
	}
}
