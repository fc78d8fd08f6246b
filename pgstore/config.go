package pgstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const (
	// DefaultSchema is the schema that holds the records unless [Config] says otherwise.
	DefaultSchema = "idem"

	// maxName is the longest name that Postgres keeps whole, in bytes.
	maxName = 63

	// maxKeyBytes keeps a scope and a key of that size, each byte escaped, below the 2704 bytes that an entry of
	// the primary key's index may have.
	maxKeyBytes = 2600 / (2 * worstKey)
)

// Config configures a [Store]. The zero Config works.
type Config struct {
	// Schema is the database schema that holds the records: a name as it is, without quotes, of at most 63 bytes of
	// UTF-8, without NUL, line breaks and $$. Stores of one schema share their records. Empty means "idem".
	Schema string

	// TTL is how long a response is replayed unless it says otherwise itself. Zero means 24 hours.
	TTL time.Duration

	// Lease is how long a claim lasts unless the request says otherwise. Zero means 30 seconds.
	Lease time.Duration

	// OnLeaseExpiry is what happens to a key that this store has claimed and whose lease runs out. It stays with
	// the claim: stores with another policy obey it too. Zero means TakeOver.
	OnLeaseExpiry idem.LeasePolicy

	// MaxKeyBytes bounds keys, and scopes likewise; at most 325, which is what fits into an index. Zero means 255.
	MaxKeyBytes int

	// MaxResponseBytes bounds a response's header and body together. Zero means 1 MiB.
	MaxResponseBytes int

	// MaxWaiters bounds the callers of this store that wait at a time. Zero means 65536.
	MaxWaiters int

	// MaxWaitersPerKey bounds those that wait for one key. Zero means 1024.
	MaxWaitersPerKey int

	// PollOnly makes do without NOTIFY and LISTEN: waiters look again and again, first after 10 ms and then less and
	// less often, up to once in half a second. It is for pgbouncer in transaction mode, through which no
	// notification comes, and saves a connection for each process.
	PollOnly bool

	// Logger is told what no caller can see. Nil means nobody is.
	Logger *slog.Logger
}

// validate puts the defaults in and checks the ranges.
func (c *Config) validate() error {
	c.TTL = orDefault(c.TTL, 24*time.Hour)
	c.Lease = orDefault(c.Lease, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, f := range []struct {
		name       string
		value      *int
		zero, most int
	}{
		{"MaxKeyBytes", &c.MaxKeyBytes, 255, maxKeyBytes},
		{"MaxResponseBytes", &c.MaxResponseBytes, 1 << 20, 512 << 20}, // a field may have a gigabyte, as text
		{"MaxWaiters", &c.MaxWaiters, 1 << 16, math.MaxInt32},
		{"MaxWaitersPerKey", &c.MaxWaitersPerKey, 1 << 10, math.MaxInt32},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < 1 || *f.value > f.most {
			return fmt.Errorf("pgstore: Config.%s is %d, want 1 to %d", f.name, *f.value, f.most)
		}
	}
	switch {
	case c.TTL < 0:
		return fmt.Errorf("pgstore: Config.TTL is %v, want zero, for the default, or more", c.TTL)
	case c.Lease < 0:
		return fmt.Errorf("pgstore: Config.Lease is %v, want zero, for the default, or more", c.Lease)
	case c.OnLeaseExpiry > idem.Hold:
		return fmt.Errorf("pgstore: Config.OnLeaseExpiry is %d, want TakeOver or Hold", c.OnLeaseExpiry)
	}
	var err error
	c.Schema, err = schemaName(c.Schema)
	return err
}

// schemaName checks the name of a schema. Postgres would cut a name that is too long, and two schemas be one. Quoted, a name
// may be anything, but migrations have it in comments, which end with the line, and in functions, which end at $$.
func schemaName(name string) (string, error) {
	switch {
	case name == "":
		return DefaultSchema, nil
	case len(name) > maxName:
		return "", fmt.Errorf("pgstore: schema name of %d bytes, want at most %d", len(name), maxName)
	case strings.ToValidUTF8(name, "") != name, strings.ContainsAny(name, "\x00\r\n"), strings.Contains(name, "$$"):
		return "", fmt.Errorf("pgstore: schema name %q, want UTF-8 without NUL, line breaks and $$", name)
	}
	return name, nil
}

var errNilContext = errors.New("pgstore: nil context")

func orDefault(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return d
}

// micros is a duration as statements take it. What is below the resolution of Postgres' clock is rounded up to it: a
// lease of a nanosecond is short, not none.
func micros(d time.Duration) int64 {
	if d%time.Microsecond == 0 || d > math.MaxInt64-time.Microsecond {
		return int64(d / time.Microsecond)
	}
	return int64(d/time.Microsecond) + 1
}
