package msgidem

import (
	"context"
	"time"
)

// A Message is what a broker delivers, as far as handling it once needs to know.
type Message struct {
	// ID is the idempotency key: it names the logical message, so it is the same each time that message is
	// published, whatever the broker numbers it by. One of a length that the store does not take, the empty
	// one among them, can't be handled: such a message goes to the dead letters.
	ID string

	// Scope is the consumer group. Two groups that read one stream handle each message once each.
	Scope string

	// Payload is what the message says. Two messages under one ID whose payloads differ are a mismatch, see
	// [Config.Fingerprint]. It is only read.
	Payload []byte

	// Attempt counts the broker's deliveries of this message from 1. Zero means that the broker does not
	// tell; then the failures in this process are counted.
	Attempt int

	// Last says that the broker will not deliver the message again whatever it is told, since that is how
	// it was configured. What would be given back goes to the dead letters then, so that it is not lost. If another
	// consumer has the message, or its claim was lost, it waits for what becomes of the message before that.
	Last bool

	// AckWait is how long the broker waits for an acknowledgement or a heartbeat before it delivers the
	// message again. Zero means that it does not do so by itself.
	AckWait time.Duration

	// Raw is the broker's own message, a jetstream.Msg for instance.
	Raw any
}

// Capability says what a broker can do with a delivery, as bits.
type Capability uint8

const (
	// CanNak: NakAfter makes the broker deliver the message again. Without it (Kafka) a message that has to
	// wait stays in hand: [Handler.Handle] returns [Retried] with the delay and the caller handles the same
	// delivery again after it, as [Handler.Run] does.
	CanNak Capability = 1 << iota

	// CanDelay: NakAfter heeds its delay. Without it the handler sits the delay out itself, up to
	// ten seconds, before it calls NakAfter.
	CanDelay

	// CanTerm: Term ends the message without success. Without it a dead-lettered message is acknowledged.
	CanTerm

	// CanHeartbeat: Heartbeat makes the broker wait for another AckWait.
	CanHeartbeat
)

// Has reports whether c has all bits of want.
func (c Capability) Has(want Capability) bool { return c&want == want }

// A Delivery is one delivery of a message by a broker. A [Handler] calls its methods one after the other,
// except Heartbeat, which may be called while another one runs. A method that Can does not promise is never
// called, Ack apart. The ctx of Ack, NakAfter and Term has a deadline and does not end with the consumer's.
type Delivery interface {
	// Message returns the same message each time.
	Message() Message

	// Can returns what the broker can do.
	Can() Capability

	// Ack tells the broker that the message is done, and returns when the broker has it, where it says so.
	Ack(ctx context.Context) error

	// NakAfter asks the broker to deliver the message again after delay, which is zero or more.
	NakAfter(ctx context.Context, delay time.Duration) error

	// Term tells the broker that the message will never be handled.
	Term(ctx context.Context, reason string) error

	// Heartbeat tells the broker that the message is still being handled.
	Heartbeat(ctx context.Context) error
}

// A Source is where [Handler.Run] gets deliveries from. Next is never called by two goroutines at a time.
type Source interface {
	// Next blocks until there is a delivery, or ctx ends. [io.EOF] ends the consumer in good order, any
	// other error with that error: a source gets over what passes, a lost connection say, by itself.
	Next(ctx context.Context) (Delivery, error)
}
