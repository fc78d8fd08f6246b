package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// patience is how long a customer goes on trying. It must exceed the longest lease.
	patience = 90 * time.Second

	retryPause = 50 * time.Millisecond
)

// Customers send orders.
type customers struct {
	client  *http.Client
	servers []string // their addresses

	mu       sync.Mutex
	answered int            // orders
	answers  map[string]int // by what the servers found
	retries  int
}

func newCustomers(servers []string, atATime int) *customers {
	return &customers{
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atATime * len(servers)}},
		servers: servers, answers: make(map[string]int),
	}
}

// sendAll sends each order to all servers at the same time, and so many orders at a time.
func (c *customers) sendAll(ctx context.Context, orders []string, atATime int) error {
	defer c.client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for _, order := range orders {
		group.Go(func() error { return c.send(ctx, order) })
	}
	return group.Wait()
}

// send sends one order to all servers, as a customer does who is in doubt whether the first try arrived. All
// answers have to be the same: the receipt of the one charge that counts.
func (c *customers) send(ctx context.Context, order string) error {
	answers := make([]string, len(c.servers))
	group, ctx := errgroup.WithContext(ctx)
	// The one that is asked first is most often the one that charges: let it be another each time.
	first := rand.N(len(c.servers))
	for i := range c.servers {
		i = (first + i) % len(c.servers)
		group.Go(func() (err error) {
			answers[i], err = c.insist(ctx, order, i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, answer := range answers {
		if answer != answers[0] {
			return fmt.Errorf("%s was answered %q by one server and %q by another", order, answers[0], answer)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered++
	return nil
}

// insist sends an order until it is answered, to the next server when one does not answer. That is safe only
// because the order's name is its idempotency key.
func (c *customers) insist(ctx context.Context, order string, first int) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s got no answer in %v", order, patience))
	defer cancel()
	var err error
	for i := first; ctx.Err() == nil; i++ {
		var state, answer string
		state, answer, err = c.try(ctx, order, c.servers[i%len(c.servers)])
		if err == nil {
			c.count(state)
			return answer, nil
		}
		c.count("")
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
	return "", fmt.Errorf("%w; the last try: %w", context.Cause(ctx), err)
}

// try sends an order once. An error means that it has to be sent again.
func (c *customers) try(ctx context.Context, order, server string) (state, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+server+"/orders/"+order, nil)
	if err != nil {
		return "", "", err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return "", "", err
	}
	state = resp.Header.Get(stateHeader)
	if resp.StatusCode == http.StatusOK || state == "unknown" {
		return state, string(body), nil
	}
	return "", "", fmt.Errorf("%s: %s", resp.Status, body)
}

// orders returns how many orders have all their answers.
func (c *customers) orders() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

// count counts an answer, or a try that had none.
func (c *customers) count(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == "" {
		c.retries++
		return
	}
	c.answers[state]++
}
