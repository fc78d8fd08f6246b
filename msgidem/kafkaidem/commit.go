package kafkaidem

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitLoop commits what is settled, until stop is closed. What fails is committed the next time.
func (c *Consumer) commitLoop(stop <-chan struct{}) {
	tick := time.NewTicker(c.cfg.CommitInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if err := c.commit(c.work, c.all(), false); err != nil {
			c.cfg.Logger.WarnContext(c.work, "kafkaidem: commit failed", "group", c.group, "error", err)
		}
	}
}

// commit sends the offsets of the partitions that the broker doesn't have. The last commit of a partition seals it;
// after that none of it is sent from here, not even one that was prepared before: offsets are taken and sent under
// one lock. If it were otherwise, a late commit would set the next consumer back.
func (c *Consumer) commit(ctx context.Context, list []*partition, last bool) error {
	c.committing.Lock()
	defer c.committing.Unlock()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, p := range list {
		at, ok := p.due(last)
		if !ok {
			continue
		}
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.number] = at
	}
	if len(offsets) == 0 {
		return nil
	}
	if err := c.send(ctx, offsets); err != nil {
		c.counters.commitErrors.Add(1)
		return fmt.Errorf("kafkaidem: commit: %w", err)
	}
	c.counters.commits.Add(1)
	for _, p := range list {
		if at, ok := offsets[p.topic][p.number]; ok {
			p.mu.Lock()
			p.committed = at.Offset
			p.mu.Unlock()
		}
	}
	return nil
}

// seal is the last commit of partitions that nothing may be committed of.
func (c *Consumer) seal(list []*partition) {
	c.committing.Lock()
	defer c.committing.Unlock()
	for _, p := range list {
		p.due(true)
	}
}

// send commits offsets and returns the first error there is, the broker's about a single partition included.
func (c *Consumer) send(ctx context.Context, offsets map[string]map[int32]kgo.EpochOffset) (failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.commitTimeout)
	defer cancel()
	c.client.CommitOffsetsSync(ctx, offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			failed = firstError(resp, err)
		})
	return failed
}

func firstError(resp *kmsg.OffsetCommitResponse, err error) error {
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("partition %d of %s: %w", p.Partition, topic.Topic, err)
			}
		}
	}
	return nil
}
