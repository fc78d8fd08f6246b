package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// revoked is called by the client when partitions are to move to another member; never while polled messages are not
// in hand yet. The partitions don't move until it has returned.
func (c *Consumer) revoked(ctx context.Context, client *kgo.Client, which map[string][]int32) {
	if client == c.client {
		c.giveUp(ctx, which, c.revokeTimeout, true)
	}
}

// lost is called by the client when the group has given its partitions to others already. The broker would refuse a
// commit, and handlers get no time.
func (c *Consumer) lost(ctx context.Context, client *kgo.Client, which map[string][]int32) {
	if client == c.client {
		c.giveUp(ctx, which, 0, false)
	}
}

// giveUp ends what is done of the partitions here.
func (c *Consumer) giveUp(ctx context.Context, which map[string][]int32, patience time.Duration, commit bool) {
	if heard, ok := ctx.Value(probe{}).(*bool); ok {
		*heard = true
		return
	}
	list := c.those(which)
	c.cfg.Logger.DebugContext(ctx, "kafkaidem: partitions taken away", "group", c.group, "in hand", len(list), "commit", commit)
	if len(list) == 0 {
		return
	}
	if stuck := c.quiet(list, patience, ErrRevoked); stuck > 0 {
		c.cfg.Logger.WarnContext(ctx, "kafkaidem: handlers still run in partitions that are taken away", "group", c.group, "partitions", stuck)
	}
	if !commit {
		c.seal(list)
	} else if err := c.commit(ctx, list, true); err != nil {
		c.cfg.Logger.WarnContext(ctx, "kafkaidem: last commit of partitions failed", "group", c.group, "error", err)
	}
	c.drop(list)
}

// quiet lets nothing more begin in the partitions and waits for what runs: first for patience, then, with ended
// contexts, for a little longer. It returns in how many of them handlers still run; those are on their own.
func (c *Consumer) quiet(list []*partition, patience time.Duration, cause error) (stuck int) {
	for _, p := range list {
		p.stop()
	}
	if within(list, patience) == 0 {
		return 0
	}
	for _, p := range list {
		p.cancel(cause)
	}
	return within(list, c.stuckAfter)
}

// within returns how many of the partitions are not done when patience is over.
func within(list []*partition, patience time.Duration) (left int) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	over := false
	for _, p := range list {
		if !over {
			select {
			case <-p.done:
				continue
			case <-timer.C:
				over = true
			}
		}
		select {
		case <-p.done:
		default:
			left++
		}
	}
	return left
}

// drain ends the consumer: it waits for what runs, and commits.
func (c *Consumer) drain() error {
	list := c.all()
	stuck := c.quiet(list, c.cfg.DrainTimeout, msgidem.ErrStopped)
	err := c.commit(c.work, list, true)
	c.drop(list)
	if stuck > 0 {
		err = errors.Join(fmt.Errorf("kafkaidem: %w, in %d partitions", msgidem.ErrStuck, stuck), err)
	}
	return err
}
