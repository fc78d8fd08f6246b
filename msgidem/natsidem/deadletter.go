package natsidem

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/internal/shrink"
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

// The server's error codes for a message that is larger than the stream takes, all of it or its headers.
const (
	codeMessageTooLarge jetstream.ErrorCode = 10054
	codeHeadersTooLarge jetstream.ErrorCode = 10097
)

// DeadLetters returns a [msgidem.Config.DeadLetter] that publishes the message to subject, with its payload, its
// headers (but for Nats-…, which are orders to the server) and those above. It succeeds when a stream has stored the
// letter: there must be one that takes the subject, and it should not be the stream that is read. A letter that comes
// twice has the same Nats-Msg-Id. One that is too large is sent with fewer headers: at worst it is the payload alone.
func DeadLetters(js jetstream.Publisher, subject string) func(context.Context, msgidem.DeadLetter) error {
	return func(ctx context.Context, l msgidem.DeadLetter) error {
		err := shrink.Send(isTooLarge, func(step shrink.Step) error {
			_, failed := js.PublishMsg(ctx, letter(subject, l, step))
			return failed
		})
		if err != nil {
			return fmt.Errorf("natsidem: dead letter to %s: %w", subject, err)
		}
		return nil
	}
}

func isTooLarge(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode == codeMessageTooLarge || api.ErrorCode == codeHeadersTooLarge
	}
	return errors.Is(err, nats.ErrMaxPayload)
}

func letter(subject string, l msgidem.DeadLetter, step shrink.Step) *nats.Msg {
	out := nats.NewMsg(subject)
	out.Data = l.Message.Payload
	if step == shrink.Bare {
		return out
	}
	id := l.Message.Scope + "/" + l.Message.ID
	if in, ok := l.Message.Raw.(jetstream.Msg); ok {
		if step < shrink.OwnHeaders {
			addHeaders(out.Header, in.Headers())
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
	out.Header.Set(ReasonHeader, step.Reason(l.Reason))
	out.Header.Set(IDHeader, l.Message.ID)
	out.Header.Set(ScopeHeader, l.Message.Scope)
	return out
}

// addHeaders adds what is not an order to the server: a rollup, a TTL, a window.
func addHeaders(out, in nats.Header) {
	for name, values := range in {
		if !strings.HasPrefix(name, "Nats-") {
			out[name] = values
		}
	}
}
