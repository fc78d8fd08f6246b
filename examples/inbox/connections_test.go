package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// A handler that runs for long must not keep a connection of the store from the others, and neither must those that wait for
// it.
func TestNoConnectionIsHeldWhileAHandlerRuns(t *testing.T) {
	const consumers = 8
	var end undoing
	t.Cleanup(func() { require.NoError(t, end.run()) })
	box, err := openInbox(t.Context(), &end)
	require.NoError(t, err)
	js, err := openBroker(&end)
	require.NoError(t, err)
	_, _, err = publish(t.Context(), js, 1)
	require.NoError(t, err)

	var runs atomic.Int32
	running, release := make(chan struct{}), make(chan struct{})
	slow := func(context.Context, msgidem.Message, idem.Claim) error {
		runs.Add(1)
		close(running)
		<-release
		return nil
	}
	var all sync.WaitGroup
	for i := range consumers {
		c, err := js.CreateConsumer(t.Context(), "payments", jetstream.ConsumerConfig{
			Durable: fmt.Sprint("bank-", i), AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second,
		})
		require.NoError(t, err)
		all.Go(func() { consumeAll(t, box, c, slow) })
	}
	<-running
	free, most := 0, int32(0)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		<-tick.C // some extend the claim, or look what became of it
		held := box.pool.Stat().AcquiredConns()
		most = max(most, held)
		if held == 0 {
			free++
		}
	}
	close(release)
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.Greater(t, free, 50, "of 100 looks none is held; at most %d were", most)
}

// consumeAll handles the messages of a consumer until all are settled.
func consumeAll(t *testing.T, box *inbox, c jetstream.Consumer, fn msgidem.Func) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer stop()
		_ = settled(ctx, c)
	}()
	source, err := natsidem.New(ctx, c, natsidem.Config{Scope: "payments/bank"})
	if err != nil {
		t.Error(err)
		return
	}
	h, err := msgidem.New(box.store, fn, msgidem.Config{Workers: 1, Wait: time.Minute})
	if err == nil {
		err = h.Run(ctx, source)
	}
	if err == nil {
		err = source.Close()
	}
	if err != nil {
		t.Error(err)
	}
}
