package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	bills = "bills" // the stream that is consumed
	dead  = "dead"  // the stream of dead letters
	group = "bank"  // the durable consumer that all consumers share

	// ackWait is how soon the broker delivers a message of a consumer that was killed to another one.
	ackWait = time.Second

	// window is how long the broker itself recognises a message that is published again. Brokers have it at two
	// minutes, and producers that try again later; this one is short, so that the demonstration can be.
	window = 100 * time.Millisecond
)

// A broker is a NATS server inside the process, which nobody can reach from outside.
type broker struct {
	server *server.Server
	dir    string
	conn   *nats.Conn // for everything but the consumers
	js     jetstream.JetStream
}

func startBroker(ctx context.Context) (b *broker, err error) {
	b = &broker{}
	defer func() {
		if err != nil {
			b.close()
			err = fmt.Errorf("broker: %w", err)
		}
	}()
	if b.dir, err = os.MkdirTemp("", "idem-queue-"); err != nil {
		return b, err
	}
	b.server, err = server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: b.dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return b, err
	}
	b.server.Start()
	if !b.server.ReadyForConnections(10 * time.Second) {
		return b, errors.New("not ready after ten seconds")
	}
	if b.conn, err = nats.Connect("", nats.InProcessServer(b.server)); err != nil {
		return b, err
	}
	if b.js, err = jetstream.New(b.conn); err != nil {
		return b, err
	}
	return b, b.create(ctx)
}

// create makes the streams and the consumer.
func (b *broker) create(ctx context.Context) error {
	for _, name := range []string{bills, dead} {
		_, err := b.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.MemoryStorage, Duplicates: window,
		})
		if err != nil {
			return err
		}
	}
	_, err := b.js.CreateConsumer(ctx, bills, jetstream.ConsumerConfig{
		Durable: group, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 10_000,
	})
	return err
}

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir) // the streams are in memory: there is next to nothing in it
	}
}

// left returns how many messages are not settled.
func (b *broker) left(ctx context.Context) (int, error) {
	c, err := b.js.Consumer(ctx, bills, group)
	if err != nil {
		return 0, err
	}
	info := c.CachedInfo()
	return int(info.NumPending) + info.NumAckPending, nil
}

// A wire is a connection to the broker that can be cut as if its process had died: what is buffered is lost.
type wire struct {
	server *server.Server
	mu     sync.Mutex // guards conn
	conn   net.Conn
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *wire) InProcessConn() (net.Conn, error) {
	conn, err := w.server.InProcessConn()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
	return conn, err
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		_ = w.conn.Close()
	}
}
