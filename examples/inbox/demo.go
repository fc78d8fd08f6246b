package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// An undoing is what is to be done in the end, the last first.
type undoing []func() error

func (u *undoing) add(f func() error) { *u = append(*u, f) }

func (u *undoing) run() (err error) {
	for _, f := range slices.Backward(*u) {
		err = errors.Join(err, f())
	}
	return err
}

// demonstrate publishes the payments, has them made, and counts.
func demonstrate(ctx context.Context, o options) (r *report, err error) {
	var end undoing
	defer func() { err = errors.Join(err, end.run()) }()
	box, err := openInbox(ctx, &end)
	if err != nil {
		return nil, err
	}
	js, err := openBroker(&end)
	if err != nil {
		return nil, err
	}
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
func openInbox(ctx context.Context, end *undoing) (*inbox, error) {
	name := "inbox_" + strings.ToLower(rand.Text()[:12])
	pool, err := openPool(ctx, name, end)
	if err != nil {
		return nil, err
	}
	if err = pgstore.Migrate(ctx, pool, name); err != nil {
		return nil, err
	}
	end.add(func() error {
		_, dropped := pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+name+" CASCADE")
		return dropped
	})
	// No key on payments.id: what makes each payment once is to be seen, not helped.
	if _, err = pool.Exec(ctx, `CREATE TABLE payments (id text NOT NULL, cents int NOT NULL);
		CREATE TABLE outbox (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payment text NOT NULL)`); err != nil {
		return nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{Schema: name})
	if err != nil {
		return nil, err
	}
	end.add(store.Close)
	return &inbox{pool: pool, store: store}, nil
}

// openPool connects to the database, or starts one.
func openPool(ctx context.Context, schema string, end *undoing) (*pgxpool.Pool, error) {
	url, stop, err := testserver.PostgresURL()
	if err != nil {
		return nil, err
	}
	end.add(stop)
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	cfg.MaxConns = 32 // a worker holds one for its transaction, and needs another for the claim
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	end.add(func() error { pool.Close(); return nil })
	return pool, nil
}

// openBroker starts a NATS server that nobody can reach from outside.
func openBroker(end *undoing) (jetstream.JetStream, error) {
	dir, err := os.MkdirTemp("", "idem-inbox-")
	if err != nil {
		return nil, err
	}
	end.add(func() error { return os.RemoveAll(dir) })
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, err
	}
	s.Start()
	end.add(func() error {
		s.Shutdown()
		s.WaitForShutdown()
		return nil
	})
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("broker is not ready after ten seconds")
	}
	conn, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return nil, err
	}
	end.add(func() error { conn.Close(); return nil })
	return jetstream.New(conn)
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
		_, failed := js.Publish(ctx, "payments", []byte("1250 cents"), jetstream.WithMsgID(fmt.Sprint("payment-", i)))
		return failed
	}
	for i := range n {
		if err = send(i); err != nil {
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
		if err = send(2 * i); err != nil {
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
