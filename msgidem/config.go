package msgidem

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// Config says how a [Handler] treats messages. The zero Config works.
type Config struct {
	// Workers is how many messages [Handler.Run] handles at a time, at most 65536. It goes on with others while the
	// broker takes its time to confirm that some are done, but has never more than twice as many in hand. With one
	// worker it does not: messages are handled and acknowledged in order. Zero means 16.
	Workers int

	// MaxAttempts is how often a message is tried. When an attempt fails and it was the last one, it is a dead
	// letter. Deliveries that the broker counts are attempts as far as this process does not know better, so that
	// a message that came to other processes before has at least one run, and is a dead letter when that fails.
	// It should be below what the broker allows: a broker that gives up first does so without a word. Zero means 5.
	MaxAttempts int

	// MaxDeliveries is the guard against messages that kill their process, whose runs nobody sees fail: one that the
	// broker has delivered more often than that is a dead letter without another run. Deliveries that came to
	// nothing in other processes count, as they do in an outage of the store: so it is to be far above MaxAttempts,
	// and must not be below. A broker that does not count has no such guard. Zero means ten times MaxAttempts.
	MaxDeliveries int

	// Backoff returns how long a message waits after its attempt failed; attempt counts from 1. While the store is
	// down it counts the deliveries to this process that came to nothing. Nil means [DefaultBackoff].
	Backoff func(attempt int) time.Duration

	// Lease is how long a claim lasts unless it is extended, which happens every third of it while the
	// handler runs. Zero means the store's default.
	Lease time.Duration

	// TTL is how long it is remembered that a message is done. It must exceed the time after which the
	// broker, or whoever publishes, may still deliver it again. Zero means the store's default.
	TTL time.Duration

	// Wait is how long a duplicate waits for the one that runs, before it is given back until the lease is
	// over. Every time it is given back it is delivered once more, which brokers limit. It occupies a
	// worker. Zero means one second, negative not at all.
	Wait time.Duration

	// DrainTimeout is how long handlers may go on after Run was told to stop. Then their contexts end with
	// the cause [ErrStopped]. Zero means 30 seconds.
	DrainTimeout time.Duration

	// Fingerprint returns a digest of what makes two messages under one ID the same. Nil means
	// [idem.FingerprintOf] the payload. See also [IDOnly].
	Fingerprint func(Message) idem.Fingerprint

	// DeadLetter takes a message that will never be handled. It is called before the failure is recorded and the
	// broker is told: if it fails the message is given back, so nothing is lost, and when something fails after it
	// the same letter comes again. On the last delivery, which can't be given back, it is called again for as long
	// as a lease, ten seconds at least; if it fails even then the message is lost. It is called under the claim when
	// there is one: there is none for a mismatch, an unknown outcome, an ID that the store does not take, and a
	// delivery that is a dead letter only for being the last. The broker gets its heartbeats meanwhile. Nil means
	// that such a message is only logged, by its ID, and what the broker itself does with it has to be enough. Kafka does
	// nothing.
	DeadLetter func(ctx context.Context, l DeadLetter) error

	// OnOutcome is told of every delivery after the broker was. It is called by the goroutine that handled
	// the message, so that a slow one slows the consumer; a panic in it is logged.
	OnOutcome func(ctx context.Context, m Message, o Outcome)

	// Logger is told what no caller can see: duplicates at Debug, retries at Info, dead letters, lost
	// claims and a store that fails at Warn, panics at Error. IDs are logged at Debug only, but for dead letters that no hook
	// takes, and payloads never. Nil means nobody is.
	Logger *slog.Logger
}

// The defaults and bounds of Config.
const (
	defaultWorkers      = 16
	maxWorkers          = 1 << 16
	defaultAttempts     = 5
	defaultWait         = time.Second
	defaultDrainTimeout = 30 * time.Second

	// deliveriesPerAttempt is how many deliveries MaxDeliveries has by default for each of MaxAttempts: room for some
	// restarts and outages.
	deliveriesPerAttempt = 10

	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// validate puts the defaults in and checks the ranges.
func (c *Config) validate() error {
	if c.Workers < 0 || c.Workers > maxWorkers {
		return fmt.Errorf("msgidem: Config.Workers is %d, want 0 to %d", c.Workers, maxWorkers)
	}
	if c.MaxAttempts < 0 {
		return fmt.Errorf("msgidem: Config.MaxAttempts is %d, want zero or more", c.MaxAttempts)
	}
	c.MaxAttempts = orDefault(c.MaxAttempts, defaultAttempts)
	if c.MaxDeliveries != 0 && c.MaxDeliveries < c.MaxAttempts {
		return fmt.Errorf("msgidem: Config.MaxDeliveries is %d, want zero, or MaxAttempts (%d) or more",
			c.MaxDeliveries, c.MaxAttempts)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"Lease", c.Lease}, {"TTL", c.TTL}, {"DrainTimeout", c.DrainTimeout}} {
		if f.value < 0 {
			return fmt.Errorf("msgidem: Config.%s is %v, want zero or more", f.name, f.value)
		}
	}
	c.Workers = orDefault(c.Workers, defaultWorkers)
	c.MaxDeliveries = orDefault(c.MaxDeliveries, deliveriesPerAttempt*min(c.MaxAttempts, math.MaxInt/deliveriesPerAttempt))
	c.Wait = orDefault(c.Wait, defaultWait)
	c.DrainTimeout = orDefault(c.DrainTimeout, defaultDrainTimeout)
	if c.Backoff == nil {
		c.Backoff = DefaultBackoff
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// inHand is how many messages Run has in hand at a time.
func (c *Config) inHand() int {
	if c.Workers == 1 {
		return 1
	}
	return 2 * c.Workers
}

func orDefault[T int | time.Duration](v, zero T) T {
	if v == 0 {
		return zero
	}
	return v
}

// DefaultBackoff returns a time that doubles with each attempt, from one second to a minute, less up to a
// quarter of it, so that messages that failed together come back apart.
func DefaultBackoff(attempt int) time.Duration {
	d := lastBackoff
	if attempt < 7 { // 2^6 seconds are more than a minute
		d = min(firstBackoff<<max(attempt-1, 0), lastBackoff)
	}
	return d - rand.N(d/4)
}

// IDOnly is a [Config.Fingerprint] under which the ID alone says that two messages are the same, whatever
// their payloads: for messages that are encoded anew each time, and to [Handler.Warm] from a list of IDs.
func IDOnly(Message) idem.Fingerprint { return idem.Fingerprint{} }
