package kafkaidem

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
)

// DefaultIDHeader is the record header that [DefaultID] reads.
const DefaultIDHeader = "Idempotency-Key"

// Config says how a [Consumer] reads a group's partitions. The zero Config works.
type Config struct {
	// Workers is how many messages are handled at a time, over all partitions, at most 65536. A message that
	// waits for its next attempt is not one of them. Zero means 16.
	Workers int

	// Unordered handles messages of one partition at the same time and in any order. Without it they are handled
	// one after the other: a message that fails holds up those behind it in its partition.
	Unordered bool

	// Prefetch is about how many messages of a partition may be in hand, at most 65536: those that wait, that run,
	// and that are finished but can't be committed since one before them is not. A partition that reaches it is
	// paused until half of it is left. Twice as many may be held for a moment. Zero means 1000.
	Prefetch int

	// ID returns the idempotency key of a message. It must name the logical message: the same each time that is
	// produced, also by a producer that had to try again. The group's topics share the IDs; where they are unique
	// within a topic only, put its name in front. Nil means [DefaultID].
	ID func(*kgo.Record) string

	// Scope is whom the IDs belong to. Empty means the consumer group.
	Scope string

	// CommitInterval is the time between two commits of what is finished. A crash in between costs that its messages
	// are delivered again and skipped. Zero means one second.
	CommitInterval time.Duration

	// RevokeTimeout is how long handlers of a partition that moves to another consumer may go on. Then their contexts
	// end with the cause [ErrRevoked]. The whole group waits meanwhile: it is at most half of the client's
	// kgo.RebalanceTimeout. Zero means a quarter of that, 15 seconds by default.
	RevokeTimeout time.Duration

	// DrainTimeout is how long handlers may go on after Run was told to stop. Then their contexts end with the cause
	// [msgidem.ErrStopped]. Zero means 30 seconds.
	DrainTimeout time.Duration

	// Logger is told what no caller can see: commits and fetches that failed and are tried again at Warn, partitions
	// that are taken away at Debug. Nil means nobody is.
	Logger *slog.Logger
}

const (
	defaultWorkers        = 16
	maxWorkers            = 1 << 16
	defaultPrefetch       = 1000
	maxPrefetch           = 1 << 16
	defaultCommitInterval = time.Second
	defaultDrainTimeout   = 30 * time.Second
)

// validate puts the defaults in and checks the ranges. RevokeTimeout's depends on the client, see Run.
func (c *Config) validate() error {
	for _, f := range []struct {
		name       string
		value      *int
		zero, most int
	}{{"Workers", &c.Workers, defaultWorkers, maxWorkers}, {"Prefetch", &c.Prefetch, defaultPrefetch, maxPrefetch}} {
		if *f.value < 0 || *f.value > f.most {
			return fmt.Errorf("kafkaidem: Config.%s is %d, want 0 to %d", f.name, *f.value, f.most)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"CommitInterval", &c.CommitInterval, defaultCommitInterval},
		{"RevokeTimeout", &c.RevokeTimeout, 0},
		{"DrainTimeout", &c.DrainTimeout, defaultDrainTimeout},
	} {
		if *f.value < 0 {
			return fmt.Errorf("kafkaidem: Config.%s is %v, want zero or more", f.name, *f.value)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if c.ID == nil {
		c.ID = DefaultID
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// DefaultID is [HeaderID] of the header Idempotency-Key.
func DefaultID(r *kgo.Record) string { return headerID(r, DefaultIDHeader) }

// HeaderID returns a [Config.ID] that reads the header of that name: "ce_id" for CloudEvents. If there are several
// the last one counts. For a record that has none, or an empty one, it returns the record's place and time,
// "orders/3/17@1750000000000": then each record of the log is handled once, but a message that was produced twice is
// two. The time is there because a topic that is deleted and made again counts from zero again.
func HeaderID(name string) func(*kgo.Record) string {
	return func(r *kgo.Record) string { return headerID(r, name) }
}

func headerID(r *kgo.Record, name string) string {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if h := &r.Headers[i]; h.Key == name && len(h.Value) > 0 {
			return string(h.Value)
		}
	}
	return placeOf(r)
}

// maxTopic keeps a place within 255 bytes, which stores take as a key; topics may have 249 of them.
const maxTopic = 180

// placeOf names a record by where it is in the log.
func placeOf(r *kgo.Record) string {
	topic := r.Topic
	if len(topic) > maxTopic {
		topic = idem.FingerprintOf([]byte(topic)).String()
	}
	id := append([]byte(topic), '/')
	id = strconv.AppendInt(id, int64(r.Partition), 10)
	id = strconv.AppendInt(append(id, '/'), r.Offset, 10)
	return string(strconv.AppendInt(append(id, '@'), r.Timestamp.UnixMilli(), 10))
}
