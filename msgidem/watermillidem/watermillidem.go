package watermillidem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seed-5bb5eb37/idem"
)

// Config says how a [Once] treats messages. The zero Config works.
type Config struct {
	// Key returns the idempotency key of a message. It must name the logical message: the same each time that is
	// published, also by a publisher that had to try again. Nil means the message's UUID. See also [MetadataKey].
	Key func(*message.Message) string

	// Scope is put in front of the name of the router's handler, "billing/payments", which says whom the keys belong
	// to: two handlers of one topic handle a message once each. Services that share a store need one each. It may
	// be empty.
	Scope string

	// Fingerprint returns a digest of what makes two messages under one key the same. Nil means
	// [idem.FingerprintOf] the payload.
	Fingerprint func(*message.Message) idem.Fingerprint

	// Lease is how long a claim lasts unless it is extended, which happens every third of it while the handler runs.
	// Zero means the store's default.
	Lease time.Duration

	// TTL is how long it is remembered that a message is done. It must exceed the time after which the broker, or
	// whoever publishes, may still deliver it again. Zero means the store's default.
	TTL time.Duration

	// Wait is how long a duplicate waits for the one that is handled, before it fails with [idem.ErrInProgress] and
	// Watermill has it delivered again. Zero means one second, negative not at all.
	Wait time.Duration
}

const defaultWait = time.Second

func (c *Config) validate() error {
	if c.Lease < 0 {
		return fmt.Errorf("watermillidem: Config.Lease is %v, want zero or more", c.Lease)
	}
	if c.TTL < 0 {
		return fmt.Errorf("watermillidem: Config.TTL is %v, want zero or more", c.TTL)
	}
	if c.Wait == 0 {
		c.Wait = defaultWait
	}
	if c.Key == nil {
		c.Key = func(m *message.Message) string { return m.UUID }
	}
	if c.Fingerprint == nil {
		c.Fingerprint = func(m *message.Message) idem.Fingerprint { return idem.FingerprintOf(m.Payload) }
	}
	return nil
}

// MetadataKey returns a [Config.Key] that reads the metadata field of that name. A message without it has the empty
// key, which stores don't take: it fails with [idem.ErrKey].
func MetadataKey(name string) func(*message.Message) string {
	return func(m *message.Message) string { return m.Metadata.Get(name) }
}

// IsPoison reports whether err comes from [Once.Middleware] and says that trying the message again can't help: it
// failed for good, its key was used for another message, or is none, or what its handler returned before was too large
// to be recorded. It is meant for PoisonQueueWithFilter, and its opposite for Retry.ShouldRetry.
func IsPoison(err error) bool {
	var poison *poisonError
	return errors.As(err, &poison)
}

// A poisonError marks what IsPoison looks for. The errors themselves won't do: a handler that uses idem for its own
// ends may return the same ones, which say nothing about its message.
type poisonError struct{ error }

func (e *poisonError) Unwrap() error { return e.error }

// A Once makes handlers handle each message once. It must be made by [New]. Any number of handlers may share it.
type Once struct {
	store    patient
	cfg      Config
	counters counters
}

// New returns a Once on the store, which stays the caller's to close, or an error that says what is wrong with cfg.
func New(store idem.Store, cfg Config) (*Once, error) {
	if store == nil {
		return nil, errors.New("watermillidem: nil store")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Once{store: patient{store, cfg.Wait}, cfg: cfg}, nil
}

// Middleware is a [message.HandlerMiddleware]. It returns a handler that calls h once per message and returns what h
// returned, at once or recorded; or an error, for which Watermill has the message delivered again unless another
// middleware (Retry, PoisonQueue) sees to it:
//
//   - h's own error: the message is free for another attempt. Also a panic frees it, and goes on.
//   - [*idem.FailedError]: h returned an error that was marked by [idem.Permanent], now or earlier.
//   - [idem.ErrInProgress] (an [*idem.InProgressError]), [idem.ErrMismatch], [idem.ErrUnknown]: see there; h was not
//     called.
//   - [idem.ErrNotRecorded]: h succeeded, but the store did not take that, or the claim was lost. What h returned is
//     not published; the message runs again when the lease has run out, unless another consumer has it.
//   - [idem.ErrTruncated]: the message is done, but what h returned is larger than what the store keeps.
//   - any other error is the store's; h was not called.
//
// The message's context ends while h runs when the claim is lost, with the cause [idem.ErrClaimLost]: another consumer
// may be at work. [ClaimFromCtx] returns the claim.
func (o *Once) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		defer msg.SetContext(ctx) // for whoever tries the message again
		c := &call{Once: o, msg: msg, handler: h}
		resp, err := idem.Do(ctx, &o.store, o.request(msg), c.run)
		o.counters.count(c.ran, err)
		switch {
		case err == nil && c.ran:
			return c.produced, nil
		case err == nil:
			return decode(resp.Body)
		case resp.Failed || !c.ran && isFinal(err):
			return nil, &poisonError{err}
		default:
			return nil, err
		}
	}
}

// isFinal reports whether a message that was not run will never be.
func isFinal(err error) bool {
	return errors.Is(err, idem.ErrMismatch) || errors.Is(err, idem.ErrKey) || errors.Is(err, idem.ErrTruncated)
}

func (o *Once) request(msg *message.Message) idem.Request {
	scope := o.cfg.Scope
	if name := message.HandlerNameFromCtx(msg.Context()); scope == "" {
		scope = name
	} else if name != "" {
		scope += "/" + name
	}
	return idem.Request{Scope: scope, Key: o.cfg.Key(msg), Fingerprint: o.cfg.Fingerprint(msg), Lease: o.cfg.Lease, Wait: o.cfg.Wait > 0}
}

// A call is one call of a handler.
type call struct {
	*Once
	msg      *message.Message
	handler  message.HandlerFunc
	ran      bool
	produced []*message.Message // what it returned, with its contexts
}

// run is what [idem.Do] does once.
func (c *call) run(ctx context.Context, claim idem.Claim) (idem.Response, error) {
	c.ran = true
	c.msg.SetContext(context.WithValue(ctx, claimKey{}, claim))
	produced, err := c.handler(c.msg)
	resp := idem.Response{TTL: c.cfg.TTL}
	if err == nil {
		c.produced = produced
		resp.Body, resp.Truncated = encode(produced)
	}
	return resp, err
}

type claimKey struct{}

// ClaimFromCtx returns the claim under which the handler of a message runs, given the message's context: its token
// fences a downstream system, and a transaction of the handler may complete it. It is false elsewhere.
func ClaimFromCtx(ctx context.Context) (idem.Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(idem.Claim)
	return c, ok
}
