package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// errNever is what the methods would return that Kafka has nothing for, if a handler called them.
var errNever = errors.New("kafkaidem: not supported by Kafka")

// A delivery is a record in hand. It is the same one through all attempts.
type delivery struct {
	partition *partition
	number    uint64 // in the partition's window
	message   msgidem.Message
	acked     bool // written by Ack, in the goroutine that handles it
}

func (p *partition) delivery(r *kgo.Record) *delivery {
	return &delivery{partition: p, message: msgidem.Message{
		ID: p.id(r), Scope: p.scope, Payload: r.Value, Raw: r,
	}}
}

// id calls the function of the Config. If that panics the message has no ID, and goes to the dead letters.
func (p *partition) id(r *kgo.Record) (id string) {
	defer func() {
		if v := recover(); v != nil {
			p.cfg.Logger.ErrorContext(p.ctx, "kafkaidem: panic", "in", "ID", "topic", r.Topic, "partition", r.Partition,
				"offset", r.Offset, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			id = ""
		}
	}()
	return p.cfg.ID(r)
}

func (d *delivery) Message() msgidem.Message { return d.message }

// Can says nothing: there is no way to give one message back, to end one, or to ask for time for one. Heartbeats are
// the member's, and the client sends them.
func (*delivery) Can() msgidem.Capability { return 0 }

// Ack marks the record for commit.
func (d *delivery) Ack(context.Context) error {
	err := d.partition.settle(d.number)
	d.acked = err == nil
	return err
}

func (*delivery) NakAfter(context.Context, time.Duration) error { return errNever }
func (*delivery) Term(context.Context, string) error            { return errNever }
func (*delivery) Heartbeat(context.Context) error               { return errNever }
