package redisstore

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// Config configures a [Store]. The zero Config works. Stores that share records should have the same Config,
// Logger aside.
type Config struct {
	// Prefix begins the names of all keys and channels, followed by a colon: 1 to 128 bytes without white
	// space, and without braces, which would bring all keys to one node of a cluster. Zero means "idem".
	Prefix string

	// TTL is how long a response is replayed unless it says otherwise itself, and how long a key stays
	// unknown under Hold. Zero means 24 hours.
	TTL time.Duration

	// Lease is how long a claim lasts unless the request says otherwise. Zero means 30 seconds.
	Lease time.Duration

	// OnLeaseExpiry is what happens to a key whose owner's lease runs out. Zero means TakeOver.
	OnLeaseExpiry idem.LeasePolicy

	// MaxKeyBytes bounds keys, and scopes likewise; at most 65535. Zero means 255.
	MaxKeyBytes int

	// MaxResponseBytes bounds a response's header and body together; at most 256 MiB. Zero means 1 MiB.
	MaxResponseBytes int

	// MaxWaiters bounds the callers that wait at a time in this process. Zero means 65536.
	MaxWaiters int

	// MaxWaitersPerKey bounds those that wait for one key. Zero means 1024.
	MaxWaitersPerKey int

	// MinReplicas is how many replicas must have a claim before Begin returns it, and a response before
	// Complete is done, so that they outlive the loss of the primary. It costs two more round trips, and
	// a connection for as long as each call lasts. Zero means none.
	MinReplicas int

	// ReplicaTimeout is how long a call waits for that. Zero means one second. With MinReplicas only.
	ReplicaTimeout time.Duration

	// Logger is told what no caller can see: that the server may evict records, and that hints do not
	// arrive. Nil means nobody is.
	Logger *slog.Logger
}

// validate puts the defaults in and checks the ranges.
func (c *Config) validate() error {
	if c.Prefix == "" {
		c.Prefix = "idem"
	}
	if len(c.Prefix) > 128 || strings.ContainsAny(c.Prefix, "{} \t\n\v\f\r") {
		return fmt.Errorf("redisstore: Config.Prefix is %.140q, want at most 128 bytes without braces and white space", c.Prefix)
	}
	if c.OnLeaseExpiry > idem.Hold {
		return fmt.Errorf("redisstore: Config.OnLeaseExpiry is %d, want TakeOver or Hold", c.OnLeaseExpiry)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := c.validateDurations(); err != nil {
		return err
	}
	return c.validateNumbers()
}

func (c *Config) validateDurations() error {
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"TTL", &c.TTL, 24 * time.Hour},
		{"Lease", &c.Lease, 30 * time.Second},
		{"ReplicaTimeout", &c.ReplicaTimeout, time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < 0 {
			return fmt.Errorf("redisstore: Config.%s is %v, want zero, for the default, or more", f.name, *f.value)
		}
	}
	return nil
}

func (c *Config) validateNumbers() error {
	for _, f := range []struct {
		name              string
		value             *int
		zero, least, most int
	}{
		{"MaxKeyBytes", &c.MaxKeyBytes, 255, 1, math.MaxUint16},
		{"MaxResponseBytes", &c.MaxResponseBytes, 1 << 20, 1, 256 << 20}, // a server takes half a GiB
		{"MaxWaiters", &c.MaxWaiters, 1 << 16, 1, math.MaxInt32},
		{"MaxWaitersPerKey", &c.MaxWaitersPerKey, 1 << 10, 1, math.MaxInt32},
		{"MinReplicas", &c.MinReplicas, 0, 0, 100},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < f.least || *f.value > f.most {
			return fmt.Errorf("redisstore: Config.%s is %d, want %d to %d", f.name, *f.value, f.least, f.most)
		}
	}
	return nil
}
