package natsidem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// Three orders are published, one of them again when the server has forgotten it. Each is handled once; the one
// that can't be is a dead letter.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := example(ctx, cancel); err != nil {
		fmt.Println(err)
	}
	// Output:
	// charged order-1
	// charged order-2
	// dead letter: account closed
	// 4 deliveries, 1 of them skipped
}

func example(ctx context.Context, done context.CancelFunc) error {
	dir, err := os.MkdirTemp("", "natsidem")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// A server inside this process, so that the example can be run anywhere.
	srv, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	srv.Start()
	defer srv.Shutdown()
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for _, name := range []string{"ORDERS", "DEAD"} {
		if _, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Duplicates: 100 * time.Millisecond}); err != nil {
			return err
		}
	}
	for _, id := range []string{"order-1", "order-2", "order-1", "order-3"} {
		if err = publish(ctx, js, id); err != nil {
			return err
		}
	}
	consumer, err := js.CreateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		return err
	}
	return consume(ctx, done, js, consumer)
}

// publish goes on until the server takes the message: it drops those whose ID came within the last 100 ms or so itself.
func publish(ctx context.Context, js jetstream.JetStream, id string) error {
	for {
		ack, err := js.Publish(ctx, "ORDERS.new", []byte("charge "+id), jetstream.WithMsgID(id))
		if err != nil || !ack.Duplicate {
			return err
		}
		<-time.After(10 * time.Millisecond)
	}
}

func consume(ctx context.Context, done context.CancelFunc, js jetstream.JetStream, consumer jetstream.Consumer) error {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	source, err := natsidem.New(ctx, consumer, natsidem.Config{})
	if err != nil {
		return err
	}
	charge := func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if m.ID == "order-3" {
			return idem.Permanent(errors.New("account closed"))
		}
		fmt.Println("charged", m.ID)
		return nil
	}
	handler, err := msgidem.New(engine, charge, msgidem.Config{
		Workers:    1,
		DeadLetter: natsidem.DeadLetters(js, "DEAD.billing"),
		OnOutcome: func(_ context.Context, _ msgidem.Message, o msgidem.Outcome) {
			if o.Result == msgidem.DeadLettered {
				fmt.Println("dead letter:", o.Err)
				done()
			}
		},
	})
	if err != nil {
		return err
	}
	if err := handler.Run(ctx, source); err != nil {
		return err
	}
	st := handler.Stats()
	fmt.Printf("%d deliveries, %d of them skipped\n", st.Deliveries, st.Skipped)
	return source.Close()
}
