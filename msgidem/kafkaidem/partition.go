package kafkaidem

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

const (
	// again is the delay before a message is handled again of which the handler said nothing: it ended its
	// goroutine, or the store panicked.
	again = time.Second

	// maxLook bounds the delay before a message is looked at again that another consumer handles. That one may
	// finish long before its lease ends, and meanwhile the partition stands still.
	maxLook = 2 * time.Second
)

// A partition is one that is assigned to this member, from its first record to its revocation. One goroutine takes
// its records in order.
type partition struct {
	*Consumer
	topic  string
	number int32

	ctx    context.Context         //nolint:containedctx // of its handlers; it ends some time after the revocation
	cancel context.CancelCauseFunc // of ctx
	quit   chan struct{}           // closed when no handler is to be begun any more
	done   chan struct{}           // closed when none runs any more
	wake   chan struct{}           // holds a value when there may be something in queue

	mu        sync.Mutex // guards what follows
	window    window
	queue     []*delivery // in hand and not begun
	crowded   bool        // somebody waits for room
	paused    bool        // the client was told to fetch no more
	quitting  bool        // quit is closed
	sealed    bool        // the last offset was taken: what is settled from now on is somebody else's
	committed int64       // the offset that the broker has from here; -1 if none
}

func (c *Consumer) newPartition(topic string, number int32) *partition {
	p := &partition{
		Consumer: c, topic: topic, number: number,
		quit: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		window: newWindow(), committed: -1,
	}
	p.ctx, p.cancel = context.WithCancelCause(c.work)
	go p.work()
	return p
}

// add takes records in hand.
func (p *partition) add(records []*kgo.Record) {
	list := make([]*delivery, len(records))
	for i, r := range records {
		list[i] = p.delivery(r)
	}
	p.mu.Lock()
	for i, r := range records {
		list[i].number = p.window.add(r)
	}
	p.queue = append(p.queue, list...)
	p.mu.Unlock()
	signal(p.wake)
}

// work handles the records until the partition is let go.
func (p *partition) work() {
	var running sync.WaitGroup
	defer close(p.done)
	defer running.Wait()
	for {
		d, ok := p.next()
		if !ok || !p.acquire() {
			return
		}
		if p.cfg.Unordered {
			running.Go(func() { p.handle(d) })
		} else {
			p.handle(d)
		}
	}
}

// next returns the next record's delivery, or false when the partition is let go.
func (p *partition) next() (*delivery, bool) {
	for {
		p.mu.Lock()
		if p.quitting {
			p.mu.Unlock()
			return nil, false
		}
		if len(p.queue) > 0 {
			d := p.queue[0]
			p.queue[0] = nil
			p.queue = p.queue[1:]
			p.mu.Unlock()
			return d, true
		}
		p.mu.Unlock()
		select {
		case <-p.wake:
		case <-p.quit:
		}
	}
}

// acquire waits for one of the Config.Workers, and tells whether it got one before the partition was let go.
func (p *partition) acquire() bool {
	select {
	case p.workers <- struct{}{}:
		return true
	case <-p.quit:
		return false
	}
}

// handle tries the record until it is settled or the partition is let go. It has a worker when it is called, and
// none when it waits.
func (p *partition) handle(d *delivery) {
	for {
		out := p.attempt(d)
		<-p.workers
		if d.acked || !p.wait(delayOf(out)) || !p.acquire() {
			return
		}
	}
}

// attempt hands the record to the handler, in a goroutine of its own since handlers may end theirs.
func (p *partition) attempt(d *delivery) msgidem.Outcome {
	result := make(chan msgidem.Outcome, 1)
	go func() {
		var out msgidem.Outcome
		defer func() { result <- out }()
		out = p.handler.Handle(p.ctx, d)
	}()
	return <-result
}

// delayOf returns how long to wait before the next attempt.
func delayOf(out msgidem.Outcome) time.Duration {
	switch {
	case out.Result != msgidem.Retried:
		return again
	case out.State == idem.InProgress:
		return min(out.Delay, maxLook)
	default:
		return out.Delay
	}
}

// wait reports whether delay was over before the partition was let go.
func (p *partition) wait(delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.quit:
		return false
	}
}

// settle marks a record for commit. It fails when the partition was given up: the record is delivered to its next
// consumer, who finds it recorded.
func (p *partition) settle(number uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return ErrRevoked
	}
	p.window.settle(number)
	if p.crowded && p.window.len() <= p.cfg.Prefetch/2 {
		p.relieveLocked()
	}
	return nil
}

// full reports whether as much is in hand as may be, and the client still fetches. Then room gets a value when half
// of it is settled.
func (p *partition) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quitting || p.paused || p.window.len() < p.cfg.Prefetch {
		return false
	}
	p.crowded = true
	return true
}

// pause makes the client fetch no more of the partition, until half of it is settled.
func (p *partition) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quitting && p.crowded { // it may have been settled or let go meanwhile
		p.paused = true
		p.client.PauseFetchPartitions(p.asMap())
	}
}

// relieveLocked makes the client fetch again, and lets the poller go on.
func (p *partition) relieveLocked() {
	if p.crowded {
		p.crowded = false
		signal(p.room)
	}
	if p.paused {
		p.paused = false
		p.client.ResumeFetchPartitions(p.asMap())
	}
}

func (p *partition) asMap() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

// stop lets nothing more begin. What is in the queue is dropped: it is not committed, so that it comes again. The
// client would remember a pause beyond the revocation.
func (p *partition) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quitting {
		return
	}
	p.quitting = true
	p.relieveLocked()
	close(p.quit)
}

// due returns the offset to commit, if there is one that the broker doesn't have. With last it is the last one.
func (p *partition) due(last bool) (kgo.EpochOffset, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return kgo.EpochOffset{}, false
	}
	p.sealed = last
	return p.window.next, p.window.next.Offset != p.committed
}

// signal puts a value into ch unless there is one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
