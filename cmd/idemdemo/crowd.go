package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// inFlight is how many clients, of all orders together, are at work at once. Each holds two file
// descriptors of this process when the server is in it as well: this stays below the usual 1024.
const inFlight = 256

// A sendFunc sends an order as one of its clients, and returns what that client was answered in the end.
type sendFunc func(ctx context.Context, order, client int) (string, error)

// crowd calls send for each of n orders from copies clients at once, as many orders at a time as inFlight
// allows. It returns how many orders had clients whose answers differ. The first error, or the end of
// ctx, ends it: orders that have not begun by then are not sent.
func crowd(ctx context.Context, n, copies int, send sendFunc) (different int, err error) {
	var strange atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, inFlight/copies))
	for order := range n {
		group.Go(func() error {
			same, failed := together(ctx, copies, func(client int) (string, error) { return send(ctx, order, client) })
			if !same {
				strange.Add(1)
			}
			return failed
		})
	}
	err = group.Wait()
	return int(strange.Load()), err
}

// together calls send for each of n clients at once and tells whether they got the same answer. Without
// an answer from each there is nothing to compare. A client that fails does not stop the others: cutting
// them off would hide what they were about to find.
func together(ctx context.Context, n int, send func(client int) (string, error)) (same bool, err error) {
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	var group errgroup.Group
	answers := make([]string, n)
	for i := range answers {
		group.Go(func() (err error) {
			answers[i], err = send(i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return true, err
	}
	for _, a := range answers {
		if a != answers[0] {
			return false, nil
		}
	}
	return true, nil
}

// bodyOf reads the body of resp and closes it, so that the connection can be used again.
func bodyOf(resp *http.Response) (string, error) {
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}

// stormClient returns a client for n requests at a time. Its connections are reset when they are closed,
// as thousands of them are when clients give up: each would otherwise hold a local port for a minute, and
// a few storms in a row would use up all that there are.
func stormClient(n int) (client *http.Client, closeIdle func()) {
	var dialer net.Dialer
	transport := &http.Transport{
		MaxIdleConnsPerHost: n,
		DisableCompression:  true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				err = tcp.SetLinger(0)
			}
			return conn, err
		},
	}
	return &http.Client{Transport: transport}, transport.CloseIdleConnections
}
