package natsidem

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// The headers of a dead letter, besides those of the message.
const (
	ReasonHeader   = "Idem-Dead-Reason"   // why, in one line
	IDHeader       = "Idem-Dead-Id"       // the idempotency key
	ScopeHeader    = "Idem-Dead-Scope"    // the consumer group
	SubjectHeader  = "Idem-Dead-Subject"  // where the message was published
	StreamHeader   = "Idem-Dead-Stream"   // the stream that it was read from
	SequenceHeader = "Idem-Dead-Sequence" // its place there
)

// DeadLetters returns a [msgidem.Config.DeadLetter] that publishes the message to subject, with its payload, its
// headers (but for Nats-…, which are orders to the server) and those above. It succeeds when a stream has stored the letter: there must be one that takes the
// subject, and it should not be the stream that is read. A letter that comes twice has the same Nats-Msg-Id.
func DeadLetters(js jetstream.Publisher, subject string) func(context.Context, msgidem.DeadLetter) error {
	return func(ctx context.Context, l msgidem.DeadLetter) error {
		_, err := js.PublishMsg(ctx, letter(subject, l))
		if err != nil {
			return fmt.Errorf("natsidem: dead letter to %s: %w", subject, err)
		}
		return nil
	}
}

func letter(subject string, l msgidem.DeadLetter) *nats.Msg {
	out := nats.NewMsg(subject)
	out.Data = l.Message.Payload
	id := l.Message.Scope + "/" + l.Message.ID
	if in, ok := l.Message.Raw.(jetstream.Msg); ok {
		for name, values := range in.Headers() {
			if !strings.HasPrefix(name, "Nats-") { // those are orders to the server: a rollup, a TTL, a window
				out.Header[name] = values
			}
		}
		out.Header.Set(SubjectHeader, in.Subject())
		if meta, err := in.Metadata(); err == nil {
			seq := strconv.FormatUint(meta.Sequence.Stream, 10)
			out.Header.Set(StreamHeader, meta.Stream)
			out.Header.Set(SequenceHeader, seq)
			id = l.Message.Scope + "/" + meta.Stream + "/" + seq // two messages under one ID are two letters
		}
	}
	out.Header.Set(jetstream.MsgIDHeader, id)
	out.Header.Set(ReasonHeader, l.Reason)
	out.Header.Set(IDHeader, l.Message.ID)
	out.Header.Set(ScopeHeader, l.Message.Scope)
	return out
}
