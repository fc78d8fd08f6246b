package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed-5bb5eb37/idem/internal/progress"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

// A fleet is one run of the program.
type fleet struct {
	setup
	orders, customers int
	stdout, stderr    io.Writer

	// apart gives each server records of its own, so that tests see what happens without a shared store.
	apart bool

	ledger *ledger
	phase  atomic.Value // what the progress line says about the servers
}

// run is the whole show.
func (f *fleet) run(ctx context.Context) (err error) {
	url, end, err := serverURL(f.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	// Others may use the server as well, so each run has keys, or a schema, of its own.
	f.URL, f.Space = url, "idem_fleet_"+strings.ToLower(rand.Text()[:12])
	b, err := openBooks(ctx, f.setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	remove, err := b.prepare(ctx, f.setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if f.ledger, err = openLedger(victim, f.orders/2); err != nil {
		return err
	}
	sent, err := f.trade(ctx)
	err = errors.Join(err, f.ledger.close())
	if err != nil {
		return err
	}
	a, err := f.review(ctx, b, f.names(), f.ledger.written(), victim)
	if err != nil {
		return err
	}
	return f.report(sent, a)
}

// serverURL returns the URL of a server, and what ends it if it is a private one.
func serverURL(store string) (url string, end func() error, err error) {
	if store == postgresStore {
		return testserver.PostgresURL()
	}
	url, private, err := testserver.RedisURL()
	if err != nil || private == nil {
		return url, func() error { return nil }, err
	}
	return url, private.Close, nil
}

// names returns all orders.
func (f *fleet) names() []string {
	names := make([]string, f.orders)
	for i := range names {
		names[i] = fmt.Sprintf("order-%0*d", len(strconv.Itoa(f.orders)), i+1)
	}
	return names
}

// trade has the customers send all orders to three servers, one of which does not live through it.
func (f *fleet) trade(ctx context.Context) (sent *customers, err error) {
	f.phase.Store("three servers run")
	servers := &crew{told: f.setup, ledger: f.ledger, apart: f.apart}
	defer func() { err = errors.Join(err, servers.stop()) }()
	if err = servers.launch(); err != nil {
		return nil, err
	}
	sent = newCustomers(servers.addrs, f.customers)
	stop := progress.Show(f.stderr, func() string {
		return fmt.Sprintf("%d of %d orders, %s", sent.orders(), f.orders, f.phase.Load())
	})
	defer stop()

	replaced := make(chan error, 1)
	trading, over := context.WithCancel(ctx)
	go func() { replaced <- servers.replace(trading, func(phase string) { f.phase.Store(phase) }) }()
	err = sent.sendAll(ctx, f.names(), f.customers)
	over()
	// If the orders could not be sent, that nobody was killed is not worth a word.
	if replaceErr := <-replaced; err == nil {
		err = replaceErr
	}
	return sent, err
}
