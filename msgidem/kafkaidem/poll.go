package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// backpressure is how long no more is polled when a partition is full, before it is paused: pausing throws away what
// the client fetched ahead, so that it is for messages that take long, or that fail.
const backpressure = 100 * time.Millisecond

// poll takes in hand what the client fetches until ctx ends.
func (c *Consumer) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		fetches := c.client.PollRecords(ctx, c.cfg.Prefetch)
		fetches.EachPartition(c.take)
		c.client.AllowRebalance()
		if err := c.failed(ctx, fetches); err != nil {
			return err
		}
		c.relieve(ctx)
	}
	return nil
}

// take puts the records of one partition into its queue.
func (c *Consumer) take(f kgo.FetchTopicPartition) {
	if len(f.Records) == 0 {
		return
	}
	c.counters.polled.Add(uint64(len(f.Records)))
	at := place{f.Topic, f.Partition}
	c.mu.Lock()
	p, ok := c.parts[at]
	if !ok {
		p = c.newPartition(f.Topic, f.Partition)
		c.parts[at] = p
	}
	c.mu.Unlock()
	p.add(f.Records)
}

// failed returns an error of a poll that ends the consumer.
func (c *Consumer) failed(ctx context.Context, fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		switch {
		case ctx.Err() != nil && errors.Is(e.Err, ctx.Err()):
		case isFinal(e.Err):
			return fmt.Errorf("kafkaidem: %w", e.Err)
		default:
			c.counters.fetchErrors.Add(1)
			c.cfg.Logger.WarnContext(ctx, "kafkaidem: fetch failed", "group", c.group, "topic", e.Topic, "partition", e.Partition, "error", e.Err)
		}
	}
	return nil
}

// isFinal reports whether err will not pass, whatever the client does. A batch that is too large to be decompressed is
// among them because its partition would stand still without a word.
func isFinal(err error) bool {
	if _, ok := errors.AsType[*kgo.ErrDecompressTooLarge](err); ok {
		return true
	}
	for _, final := range []error{
		kgo.ErrClientClosed, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.InvalidTopicException, kerr.InvalidGroupID, kerr.FencedInstanceID,
	} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// relieve waits for partitions that are full, and pauses those that remain so.
func (c *Consumer) relieve(ctx context.Context) {
	var timer <-chan time.Time
	for {
		full := c.full()
		if len(full) == 0 {
			return
		}
		if timer == nil {
			timer = time.After(backpressure)
		}
		select {
		case <-c.room:
		case <-ctx.Done():
			return
		case <-timer:
			for _, p := range full {
				p.pause()
			}
			return
		}
	}
}

func (c *Consumer) full() (list []*partition) {
	for _, p := range c.all() {
		if p.full() {
			list = append(list, p)
		}
	}
	return list
}
