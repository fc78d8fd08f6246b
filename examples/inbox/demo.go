package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// demonstrate publishes the payments, has them made, and counts.
func demonstrate(ctx context.Context, o options) (r *report, err error) {
	box, closeBox, err := openInbox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBox()) }()
	js, closeBroker, err := openBroker()
	if err != nil {
		return nil, err
	}
	defer closeBroker()
	consumer, published, err := publish(ctx, js, o.payments)
	if err != nil {
		return nil, err
	}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		_ = settled(consuming, consumer) // its error is that of consuming, which ends either way
	}()
	stats, err := box.consume(consuming, consumer, o)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	r = &report{
		ordered: o.payments, published: published, deliveries: int(stats.Deliveries), skipped: int(stats.Skipped),
		runs: int(box.runs.Load()), rolledBack: int(box.rolledBack.Load()), forgotten: int(box.forgotten.Load()),
	}
	return r, box.count(ctx, r)
}

// openInbox makes the tables, in a schema of this run's own.
func openInbox(ctx context.Context) (box *inbox, done func() error, err error) {
	url, end, err := testserver.PostgresURL()
	if err != nil {
		return nil, nil, err
	}
	undo := []func() error{end}
	done = func() (err error) {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	name := "inbox_" + rand.Text()[:12]
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	schema := pgx.Identifier{name}.Sanitize()
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	cfg.MaxConns = 32 // a worker holds one for its transaction, and needs another for the claim
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, func() error { pool.Close(); return nil })
	if err := pgstore.Migrate(ctx, pool, name); err != nil {
		return nil, nil, err
	}
	undo = append(undo, func() error {
		_, err := pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+schema+" CASCADE")
		return err
	})
	// No key on payments.id: what makes each payment once is to be seen, not helped.
	if _, err := pool.Exec(ctx, `CREATE TABLE payments (id text NOT NULL, cents int NOT NULL);
		CREATE TABLE outbox (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payment text NOT NULL)`); err != nil {
		return nil, nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{Schema: name})
	if err != nil {
		return nil, nil, err
	}
	undo = append(undo, store.Close)
	return &inbox{pool: pool, store: store}, done, nil
}

// openBroker starts a NATS server that nobody can reach from outside.
func openBroker() (js jetstream.JetStream, done func(), err error) {
	dir, err := os.MkdirTemp("", "idem-inbox-")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	s.Start()
	done = func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	if !s.ReadyForConnections(10 * time.Second) {
		done()
		return nil, nil, errors.New("broker is not ready after ten seconds")
	}
	conn, err := nats.Connect("", nats.InProcessServer(s))
	if err == nil {
		js, err = jetstream.New(conn)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	stop := done
	return js, func() { conn.Close(); stop() }, nil
}

// publish makes the stream, its consumer and the messages, every other one twice under one ID.
func publish(ctx context.Context, js jetstream.JetStream, n int) (jetstream.Consumer, int, error) {
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "payments", Subjects: []string{"payments"}, Storage: jetstream.MemoryStorage,
		Duplicates: 100 * time.Millisecond, // brokers have minutes; the second copies come after it
	})
	if err != nil {
		return nil, 0, err
	}
	send := func(i int) error {
		_, err := js.Publish(ctx, "payments", []byte("1250 cents"), jetstream.WithMsgID(fmt.Sprint("payment-", i)))
		return err
	}
	for i := range n {
		if err := send(i); err != nil {
			return nil, 0, err
		}
	}
	select {
	case <-time.After(150 * time.Millisecond):
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	copies := (n + 1) / 2
	for i := range copies {
		if err := send(2 * i); err != nil {
			return nil, 0, err
		}
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "bank", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second,
	})
	return consumer, n + copies, err
}

// settled returns when every message is acknowledged.
func settled(ctx context.Context, consumer jetstream.Consumer) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := consumer.Info(ctx)
		if err != nil || info.NumPending == 0 && info.NumAckPending == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
