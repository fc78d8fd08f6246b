package natsidem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// defaultPrefetch keeps sixteen workers busy over a network, while what waits here for its turn stays far below
// the server's default ack wait.
const defaultPrefetch = 64

// lookAgain is the longest time that a delivery waits for a client that sleeps, see look.
const lookAgain = 100 * time.Millisecond

// drainTries bounds the errors that Close gets over before it takes what has come for all there is.
const drainTries = 100

// checkEvery is how often a consumer that delivers nothing is asked about, see check.
const checkEvery = 5 * time.Second

// Config says how [New] reads a consumer. The zero Config works.
type Config struct {
	// ID returns the idempotency key of a message. It must name the logical message: the same each time that
	// is published, also by a producer that had to try again. Nil means [DefaultID].
	ID func(jetstream.Msg) string

	// Scope is whom the IDs belong to. Empty means the names of the stream and the consumer, "ORDERS/billing",
	// so that two consumers handle a message once each. Consumers that share the work share the name.
	Scope string

	// Prefetch is how many messages the server may send ahead of the handlers, at most 10000. They must get
	// their turn within the consumer's ack wait. Zero means 64. A consumer with MaxDeliver is sent nothing ahead,
	// see [Source.Next].
	Prefetch int

	// AckAsync acknowledges without waiting for the server to confirm it: faster, and if one is lost the message is
	// delivered again and skipped.
	AckAsync bool
}

func (c *Config) validate() error {
	if c.Prefetch < 0 || c.Prefetch > 10_000 {
		return fmt.Errorf("natsidem: Config.Prefetch is %d, want 0 to 10000", c.Prefetch)
	}
	if c.Prefetch == 0 {
		c.Prefetch = defaultPrefetch
	}
	if c.ID == nil {
		c.ID = DefaultID
	}
	return nil
}

// DefaultID returns the header Nats-Msg-Id, by which the server itself recognises a message that is published
// again within its window. For a message without one it returns the place in the stream, "ORDERS/17": then each
// message that was stored is handled once, but one that was published twice is two messages.
func DefaultID(m jetstream.Msg) string {
	if id := m.Headers().Get(jetstream.MsgIDHeader); id != "" {
		return id
	}
	meta, err := m.Metadata()
	if err != nil {
		return "" // which goes to the dead letters
	}
	return meta.Stream + "/" + strconv.FormatUint(meta.Sequence.Stream, 10)
}

// A Source delivers the messages of a pull consumer to [msgidem.Handler.Run]. It must be made by [New].
type Source struct {
	cfg      Config
	pull     jetstream.Consumer
	consumer jetstream.ConsumerConfig
	messages jetstream.MessagesContext // nil if the consumer has MaxDeliver, see nextOne
	closed   bool                      // by Close, when messages is nil

	asked       context.Context //nolint:containedctx // what looking was made of
	looking     context.Context //nolint:containedctx // see look
	stopLooking context.CancelFunc
	checked     time.Time // when check asked last
}

var _ msgidem.Source = (*Source)(nil)

// New starts to read a pull consumer whose acknowledgements are explicit, and asks the server how it is
// configured. ctx is for that question only. Close the source when Run has returned; the consumer and its
// connection stay the caller's.
func New(ctx context.Context, consumer jetstream.Consumer, cfg Config) (*Source, error) {
	if ctx == nil || consumer == nil {
		return nil, errors.New("natsidem: nil context or consumer")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("natsidem: consumer info: %w", err)
	}
	if p := info.Config.AckPolicy; p != jetstream.AckExplicitPolicy {
		return nil, fmt.Errorf("natsidem: consumer %s has AckPolicy %v, want explicit: each message is acknowledged by itself", info.Name, p)
	}
	if cfg.Scope == "" {
		cfg.Scope = info.Stream + "/" + info.Name
	}
	s := &Source{cfg: cfg, pull: consumer, consumer: info.Config, stopLooking: func() {}}
	if s.consumer.MaxDeliver > 0 {
		return s, nil
	}
	if s.messages, err = consumer.Messages(jetstream.PullMaxMessages(cfg.Prefetch)); err != nil {
		return nil, fmt.Errorf("natsidem: %w", err)
	}
	return s, nil
}

// Next implements [msgidem.Source]. It gets over lost connections as long as the client does; the deletion of
// the consumer and the end of the connection are errors. After Close it returns [io.EOF].
//
// With MaxDeliver it asks the server for one message at a time. Then it may take half a second longer than ctx, or two
// when the connection is lost, and return a message that came meanwhile: Run handles it before it returns.
func (s *Source) Next(ctx context.Context) (msgidem.Delivery, error) {
	if s.messages == nil {
		return s.nextOne(ctx)
	}
	for {
		m, err := s.messages.Next(jetstream.NextContext(s.look(ctx)))
		switch {
		case err == nil:
			return s.Delivery(m), nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, jetstream.ErrNoHeartbeat): // look again
			if gone := s.check(ctx); gone != nil {
				return nil, gone
			}
		case errors.Is(err, jetstream.ErrMsgIteratorClosed) && !errors.Is(err, jetstream.ErrConnectionClosed):
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("natsidem: %w", err)
		}
	}
}

// look returns a context for asking the client, which ends after a while. The client asks the server for more
// when it is asked itself, but not while it believes that it is just doing so; when its belief is out of date and
// there is nothing left that would make it look again, it sleeps until it misses a heartbeat, half a minute.
// It was seen to do so once in 30 000 messages. Such a context serves for many messages: most get none of their
// own.
func (s *Source) look(ctx context.Context) context.Context {
	if s.asked != ctx || s.looking.Err() != nil {
		s.stopLooking()
		s.asked = ctx
		s.looking, s.stopLooking = context.WithTimeout(ctx, lookAgain)
	}
	return s.looking
}

// check asks now and then what became of a consumer that delivers nothing. The client asks for messages again by
// itself; but that the consumer was deleted while the connection was lost nobody tells it. (That heartbeats are
// missing it would notice if it were asked for one message for long enough, see look.)
func (s *Source) check(ctx context.Context) error {
	if time.Since(s.checked) < checkEvery {
		return nil
	}
	s.checked = time.Now()
	_, err := s.pull.Info(ctx)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("natsidem: %w", err)
	}
	return nil
}

// Close stops reading and gives back at once what the server has sent ahead, so that other consumers need not
// wait for it until the ack wait is over. It must not be called while Run or Next is.
func (s *Source) Close() error {
	s.stopLooking()
	s.asked = nil
	s.closed = true
	if s.messages == nil {
		return nil // nothing is sent ahead, and no request is open
	}
	var failed error
	for _, m := range s.drain() {
		if err := m.Nak(); err != nil {
			failed = fmt.Errorf("natsidem: nak of a prefetched message: %w", err)
		}
	}
	return failed
}

// drain ends the subscription and returns what has come. Nothing may be given back before it has: the server has a
// request of this consumer still, and would send the message here again, which costs it one more delivery.
func (s *Source) drain() (list []jetstream.Msg) {
	s.messages.Drain()
	for failed := 0; failed < drainTries; {
		m, err := s.messages.Next()
		switch {
		case err == nil:
			list = append(list, m)
		case errors.Is(err, jetstream.ErrMsgIteratorClosed), errors.Is(err, jetstream.ErrNoHeartbeat):
			return list // there are no more
		default: // what the server said about a request
			failed++
		}
	}
	return list
}

// Delivery makes of a message of the consumer, received in whatever way, one for [msgidem.Handler.Handle].
func (s *Source) Delivery(m jetstream.Msg) msgidem.Delivery {
	d := &delivery{msg: m, async: s.cfg.AckAsync, message: msgidem.Message{
		ID: s.cfg.ID(m), Scope: s.cfg.Scope, Payload: m.Data(), AckWait: s.consumer.AckWait, Raw: m,
	}}
	meta, err := m.Metadata()
	if err != nil {
		return d
	}
	n := int(min(meta.NumDelivered, 1<<31-1))
	d.message.Attempt = n
	if most := s.consumer.MaxDeliver; most > 0 {
		d.message.Last = n >= most
	}
	if steps := s.consumer.BackOff; len(steps) > 0 { // takes the place of AckWait, delivery by delivery
		d.message.AckWait = steps[min(max(n, 1), len(steps))-1]
	}
	return d
}

// A delivery is one delivery of a message by JetStream. Its server takes an acknowledgement from any delivery of
// the message, a stale one too: that the right one is sent is up to the claim.
type delivery struct {
	msg     jetstream.Msg
	message msgidem.Message
	async   bool
}

func (d *delivery) Message() msgidem.Message { return d.message }

func (*delivery) Can() msgidem.Capability {
	return msgidem.CanNak | msgidem.CanDelay | msgidem.CanTerm | msgidem.CanHeartbeat
}

func (d *delivery) Ack(ctx context.Context) error {
	if d.async {
		return d.msg.Ack()
	}
	return d.msg.DoubleAck(ctx)
}

func (d *delivery) NakAfter(_ context.Context, delay time.Duration) error {
	return d.msg.NakWithDelay(delay)
}

func (d *delivery) Term(_ context.Context, reason string) error { return d.msg.TermWithReason(reason) }

func (d *delivery) Heartbeat(context.Context) error { return d.msg.InProgress() }
