package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem/internal/shrink"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// The headers of a dead letter, besides those of the message.
const (
	ReasonHeader    = "Idem-Dead-Reason"    // why, in one line
	IDHeader        = "Idem-Dead-Id"        // the idempotency key
	ScopeHeader     = "Idem-Dead-Scope"     // the consumer group
	TopicHeader     = "Idem-Dead-Topic"     // the topic that it was read from
	PartitionHeader = "Idem-Dead-Partition" // its place there
	OffsetHeader    = "Idem-Dead-Offset"
)

// A Producer is what [DeadLetters] needs of a [kgo.Client].
type Producer interface {
	ProduceSync(ctx context.Context, records ...*kgo.Record) kgo.ProduceResults
}

// DeadLetters returns a [msgidem.Config.DeadLetter] that produces the message to topic, with its key, its payload, its
// headers and those above. It succeeds when the brokers have the letter as the producer wants it, by all in-sync
// replicas by default. A letter may come twice; topic, partition and offset say so. One that is too large is sent with
// fewer headers: at worst it is key and payload alone.
func DeadLetters(p Producer, topic string) func(context.Context, msgidem.DeadLetter) error {
	return func(ctx context.Context, l msgidem.DeadLetter) error {
		err := shrink.Send(isTooLarge, func(step shrink.Step) error {
			return p.ProduceSync(ctx, letter(topic, l, step)).FirstErr()
		})
		if err != nil {
			return fmt.Errorf("kafkaidem: dead letter to %s: %w", topic, err)
		}
		return nil
	}
}

// isTooLarge reports whether the producer or a broker says so; both use the first of the errors.
func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

func letter(topic string, l msgidem.DeadLetter, step shrink.Step) *kgo.Record {
	out := &kgo.Record{Topic: topic, Value: l.Message.Payload}
	add := func(name, value string) {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if in, ok := l.Message.Raw.(*kgo.Record); ok {
		out.Key = in.Key
		if step < shrink.OwnHeaders {
			out.Headers = slices.Clone(in.Headers)
		}
		if step < shrink.Bare {
			add(TopicHeader, in.Topic)
			add(PartitionHeader, strconv.Itoa(int(in.Partition)))
			add(OffsetHeader, strconv.FormatInt(in.Offset, 10))
		}
	}
	if step == shrink.Bare {
		return out
	}
	add(ReasonHeader, step.Reason(l.Reason))
	add(IDHeader, l.Message.ID)
	add(ScopeHeader, l.Message.Scope)
	return out
}
