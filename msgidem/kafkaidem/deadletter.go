package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

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

// How much of a letter is sent: less each time that the one before was too large for the producer or the topic, since
// a message that was itself as large as it may be has no room for the headers of a letter.
type fullness int

const (
	whole   fullness = iota // with the headers of the message and all of the reason
	short                   // with shortReason of the reason
	ownOnly                 // and without the headers of the message
	bare                    // key and payload alone
)

// shortReason is what is left of a reason in bytes, where room is short.
const shortReason = 64

// DeadLetters returns a [msgidem.Config.DeadLetter] that produces the message to topic, with its key, its payload, its
// headers and those above. It succeeds when the brokers have the letter as the producer wants it, by all in-sync
// replicas by default. A letter may come twice; topic, partition and offset say so. One that is too large is sent with
// fewer headers: at worst it is key and payload alone.
func DeadLetters(p Producer, topic string) func(context.Context, msgidem.DeadLetter) error {
	return func(ctx context.Context, l msgidem.DeadLetter) error {
		for much := whole; ; much++ {
			err := p.ProduceSync(ctx, letter(topic, l, much)).FirstErr()
			if err == nil {
				return nil
			}
			if !isTooLarge(err) || much == bare {
				return fmt.Errorf("kafkaidem: dead letter to %s: %w", topic, err)
			}
		}
	}
}

// isTooLarge reports whether the producer or a broker says so; both use the first of the errors.
func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

func letter(topic string, l msgidem.DeadLetter, much fullness) *kgo.Record {
	out := &kgo.Record{Topic: topic, Value: l.Message.Payload}
	add := func(name, value string) {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if in, ok := l.Message.Raw.(*kgo.Record); ok {
		out.Key = in.Key
		if much < ownOnly {
			out.Headers = slices.Clone(in.Headers)
		}
		if much < bare {
			add(TopicHeader, in.Topic)
			add(PartitionHeader, strconv.Itoa(int(in.Partition)))
			add(OffsetHeader, strconv.FormatInt(in.Offset, 10))
		}
	}
	if much == bare {
		return out
	}
	reason := l.Reason
	if much >= short && len(reason) > shortReason {
		reason = strings.ToValidUTF8(reason[:shortReason], "")
	}
	add(ReasonHeader, reason)
	add(IDHeader, l.Message.ID)
	add(ScopeHeader, l.Message.Scope)
	return out
}
