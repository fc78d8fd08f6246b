package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/progress"
)

// A load is the command load: many copies of many payments, sent through [httpidem.Transport] by
// clients that give up before the server is done, and retry.
type load struct {
	url              string        // of the server, without a path
	payments, copies int           // each payment is sent by this many clients at once
	patience         time.Duration // of an attempt; shorter than a payment, it makes every client retry
	remote           bool          // allows an address that is not loopback
	within           time.Duration // the server must answer a first question, or nothing is sent
}

// loadCommand gives clients a patience that is just above what a usual payment takes, so that some attempts
// are in time and some are not.
func loadCommand() command {
	return command{
		name: "load",
		about: "Sends a storm of retries to a server that idemdemo serve started, through the client httpidem.Transport,\n" +
			"and prints what came back. Exits with 1 if a request got no result, or if two copies of a payment got\n" +
			"different ones.",
		setup: func(flags *flag.FlagSet) action {
			l := &load{
				url: "http://127.0.0.1:8080", payments: 200, copies: 12,
				patience: 120 * time.Millisecond, within: 5 * time.Second,
			}
			flags.StringVar(&l.url, "url", l.url, "`address` of the server, which must be on this machine")
			flags.Var(upTo(20_000, &l.payments), "payments", "`number` of payments, 1 to 20000")
			flags.Var(upTo(100, &l.copies), "copies", "`number` of clients that send each payment at once, 1 to 100")
			flags.Var(timeWithin(&l.patience, time.Millisecond, time.Minute), "patience",
				"`duration` that a client waits for an answer before it sends again, 1ms to 1m")
			flags.BoolVar(&l.remote, "remote", false, "send to another machine too; ask its owner first")
			return l.run
		},
	}
}

// run sends the load and prints the table, also when it was cut short. Different results weigh more than
// whatever ended it.
func (l *load) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	base, closeIdle := stormClient(inFlight)
	defer closeIdle()
	got := &answers{byStatus: make(map[int]int)}
	client := &http.Client{Transport: &httpidem.Transport{
		Base:           got.count(base.Transport),
		MaxAttempts:    maxTries,
		MinBackoff:     20 * time.Millisecond,
		MaxBackoff:     time.Second,
		AttemptTimeout: l.patience,
	}}
	total := l.payments * l.copies
	stop := progress.Show(stderr, func() string {
		return fmt.Sprintf("load: %s of %s requests answered, %s attempts",
			grouped(got.answered()), grouped(total), grouped(int(got.attempts.Load())))
	})
	start := time.Now()
	err := l.send(ctx, client, got)
	took := time.Since(start)
	stop()
	fmt.Fprintf(stdout, "load: %s payments × %d copies to %s\n", grouped(l.payments), l.copies, l.url)
	printTable(stdout, got.rows(total, took))
	if got.different > 0 {
		return fmt.Errorf("payments whose copies got different results: %d", got.different)
	}
	if err != nil {
		return fmt.Errorf("stopped at the first request without a result: %w", err)
	}
	return nil
}

// check refuses an address that is not meant, and one where nobody answers: ten tries of each of some
// thousand requests would be a slow way to find out.
func (l *load) check(ctx context.Context) error {
	u, err := url.Parse(l.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("-url %s: want an address such as http://127.0.0.1:8080", l.url)
	}
	if !isLoopback(u.Hostname()) && !l.remote {
		return fmt.Errorf("-url %s: not on this machine; add -remote if you may load it", l.url)
	}
	l.url = strings.TrimSuffix(l.url, "/")
	err = l.knock(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("-url %s: no answer within %v; is it a server that idemdemo serve started?", l.url, l.within)
	}
	return err
}

// knock asks the server for its ledger.
func (l *load) knock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+"/ledger", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w; start a server with: go run ./cmd/idemdemo serve", err)
	}
	if _, err := bodyOf(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("-url %s: %s for /ledger; is it a server that idemdemo serve started?", l.url, resp.Status)
	}
	return nil
}

// send sends every copy of every payment. The keys are new in each run, those of a payment's copies
// are the same.
func (l *load) send(ctx context.Context, client *http.Client, got *answers) error {
	run := strings.ToLower(rand.Text()[:6])
	different, err := crowd(ctx, l.payments, l.copies, func(ctx context.Context, n, _ int) (string, error) {
		return got.post(httpidem.WithKey(ctx, fmt.Sprintf("load-%s-%d", run, n)), client, l.url+"/payments",
			fmt.Sprintf(`{"order":"load-%s-%d","cents":%d}`, run, n, 100+n))
	})
	got.different = different
	return err
}

// answers counts what came back.
type answers struct {
	attempts atomic.Int64 // requests on the wire, of which the Transport shows its caller the last

	mu        sync.Mutex // guards what follows while the load runs
	byStatus  map[int]int
	replays   int
	latency   []time.Duration // from the first attempt to the answer
	different int             // payments whose copies got different results
}

// post sends one copy and returns its result, which is the body of a 201. All that is between, retries and
// answers that ask for them, is the Transport's business.
func (a *answers) post(ctx context.Context, client *http.Client, url, payment string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(payment))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	body, err := bodyOf(resp)
	if err != nil {
		return "", err
	}
	a.note(resp, time.Since(start))
	if resp.StatusCode != http.StatusCreated {
		return "", errors.New(strings.TrimSpace(resp.Status + " " + body))
	}
	return body, nil
}

// note counts one final answer.
func (a *answers) note(resp *http.Response, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byStatus[resp.StatusCode]++
	a.latency = append(a.latency, took)
	if resp.Header.Get("Idempotency-Replayed") != "" {
		a.replays++
	}
}

// answered returns how many final answers there were, for the progress line.
func (a *answers) answered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.latency)
}

// count returns a RoundTripper that counts what is sent through next. It stands below the Transport, where
// each attempt is a request of its own.
func (a *answers) count(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		a.attempts.Add(1)
		return next.RoundTrip(r)
	})
}

// roundTrip is a function that is an [http.RoundTripper].
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rows puts the answers to total requests into a table. It is called when the load is over, and sorts the latencies.
func (a *answers) rows(total int, took time.Duration) []row {
	rows := []row{
		{"requests answered", grouped(len(a.latency)) + " of " + grouped(total), fmt.Sprintf("in %.1f s", took.Seconds())},
		{"attempts", grouped(int(a.attempts.Load())), "sent by the Transport, under one key for each payment"},
	}
	for _, status := range slices.Sorted(maps.Keys(a.byStatus)) {
		rows = append(rows, row{fmt.Sprintf("%d %s", status, http.StatusText(status)), grouped(a.byStatus[status]), ""})
	}
	return append(rows,
		row{"replays", grouped(a.replays), "answered with the recorded result"},
		row{"p50 / p99", quantiles(a.latency), "from the first attempt to the answer"})
}

// isLoopback tells whether host, without a port, is this machine for sure. Other names are not looked up:
// what they mean can change between the look and the load.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
