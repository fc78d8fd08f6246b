package msgidem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A letterbox and its deliveries are all that an adapter for a broker is. This broker is a slice, and can do
// nothing but take an acknowledgement.
type letterbox []string

func (b *letterbox) Next(context.Context) (msgidem.Delivery, error) {
	if len(*b) == 0 {
		return nil, io.EOF
	}
	id := (*b)[0]
	*b = (*b)[1:]
	return ackOnly(id), nil
}

type ackOnly string

func (d ackOnly) Message() msgidem.Message {
	return msgidem.Message{ID: string(d), Scope: "billing", Payload: []byte("pay for " + d)}
}
func (ackOnly) Can() msgidem.Capability                       { return 0 }
func (ackOnly) Heartbeat(context.Context) error               { return nil }
func (ackOnly) Term(context.Context, string) error            { return nil }
func (ackOnly) NakAfter(context.Context, time.Duration) error { return nil }

func (d ackOnly) Ack(context.Context) error {
	fmt.Println("acknowledged", d)
	return nil
}

func Example() {
	engine, err := idem.New(idem.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()

	handler, err := msgidem.New(engine, func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
		if m.ID == "order-3" {
			return idem.Permanent(errors.New("account closed"))
		}
		fmt.Println("handled", m.ID)
		return nil
	}, msgidem.Config{
		Workers: 1,
		DeadLetter: func(_ context.Context, l msgidem.DeadLetter) error {
			fmt.Printf("dead letter %s: %s: %s\n", l.Message.ID, l.Reason, l.Message.Payload)
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := handler.Run(context.Background(), &letterbox{"order-1", "order-2", "order-1", "order-3"}); err != nil {
		fmt.Println(err)
	}
	st := handler.Stats()
	fmt.Println(st.Deliveries, "deliveries,", st.Done, "done,", st.Skipped, "skipped,", st.DeadLettered, "dead")
	// Output:
	// handled order-1
	// acknowledged order-1
	// handled order-2
	// acknowledged order-2
	// acknowledged order-1
	// dead letter order-3: account closed: pay for order-3
	// acknowledged order-3
	// 4 deliveries, 2 done, 1 skipped, 1 dead
}
