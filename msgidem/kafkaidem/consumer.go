package kafkaidem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// ErrRevoked: the partition moved to another member of the group; the cause for which contexts of handlers end then.
// It matches [msgidem.ErrStopped], so that such an attempt does not count.
var ErrRevoked = fmt.Errorf("kafkaidem: partition revoked: %w", msgidem.ErrStopped)

const (
	// fetchWait is how long a broker may hold a fetch for which it has nothing. A partition that is resumed takes
	// part in the next one only; with the client's five seconds it would stand still for so long.
	fetchWait = 500 * time.Millisecond

	// The rest of a revocation is bounded as well, or the member would be expelled: by the smaller of these and a
	// part of the client's rebalance timeout.
	maxStuck         = 5 * time.Second
	maxCommitTimeout = 10 * time.Second
	maxRevokeTimeout = 15 * time.Second
)

// A Consumer handles what a client of franz-go consumes as a member of a group. It must be made by [New], and it
// runs once.
type Consumer struct {
	handler *msgidem.Handler
	cfg     Config

	clients atomic.Int32 // that were made with Options: one is right

	// What follows, up to began, is set before the client begins to do anything, and not changed.
	client        *kgo.Client
	group         string
	scope         string
	rebalance     time.Duration // the time that the group waits for a member
	revokeTimeout time.Duration // the parts of it: for handlers to finish,
	stuckAfter    time.Duration // for handlers to heed the end of their contexts,
	commitTimeout time.Duration // and for a commit

	began   atomic.Bool
	work    context.Context //nolint:containedctx // of all handlers; with the values of Run's and not its end
	workers chan struct{}   // holds a value for each handler that runs
	room    chan struct{}   // holds a value when a partition that was full has room again

	committing sync.Mutex // held from when offsets are taken until the broker has them
	counters   struct{ polled, commits, commitErrors, fetchErrors atomic.Uint64 }

	mu    sync.Mutex // guards parts
	parts map[place]*partition
}

type place struct {
	topic  string
	number int32
}

// New returns a consumer that hands messages to h, or an error that says what is wrong with cfg. Attempts, back-off,
// dead letters and the lease are the handler's; its Workers and DrainTimeout are not used.
func New(h *msgidem.Handler, cfg Config) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("kafkaidem: nil handler")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Consumer{
		handler: h, cfg: cfg, parts: map[place]*partition{},
		workers: make(chan struct{}, cfg.Workers), room: make(chan struct{}, 1),
	}, nil
}

// Options returns what the client must be made with, besides a group, topics and brokers: offsets are committed by the
// consumer alone (kgo.DisableAutoCommit), no partition moves between a poll and the moment that its messages are in
// hand (kgo.BlockRebalanceOnPoll), and the consumer is told when one is to (kgo.OnPartitionsRevoked and
// OnPartitionsLost, which have to stay the consumer's). kgo.FetchMaxWait is half a second; an option after these may
// set another.
func (c *Consumer) Options() []kgo.Opt {
	return []kgo.Opt{
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxWait(fetchWait),
		kgo.OnPartitionsRevoked(c.revoked), kgo.OnPartitionsLost(c.lost), kgo.WithHooks(&hook{c}),
	}
}

// A hook is told of the client that is made with Options.
type hook struct{ *Consumer }

// OnNewClient is called by the client before it has begun to do anything.
func (h *hook) OnNewClient(client *kgo.Client) {
	if h.clients.Add(1) > 1 {
		return // Run will refuse both
	}
	h.client = client
	h.group, _ = client.OptValue(kgo.ConsumerGroup).(string)
	if h.scope = h.cfg.Scope; h.scope == "" {
		h.scope = h.group
	}
	h.rebalance, _ = client.OptValue(kgo.RebalanceTimeout).(time.Duration)
	if h.revokeTimeout = h.cfg.RevokeTimeout; h.revokeTimeout == 0 {
		h.revokeTimeout = min(maxRevokeTimeout, h.rebalance/4)
	}
	h.stuckAfter = min(maxStuck, h.rebalance/8)
	h.commitTimeout = min(maxCommitTimeout, h.rebalance/8)
}

// Run handles what client consumes until ctx ends. Then it takes no more, and returns when what is in hand is settled
// and committed: handlers go on as if nothing had happened, for Config.DrainTimeout at most. Messages that wait, for
// their turn or for another attempt, are left to the next consumer of the partition. Close the client when Run has
// returned: it has fetched messages that it would not deliver again.
//
// It returns nil after the end of ctx; an error that says what is wrong with the client; [kgo.ErrClientClosed]; an
// error of the broker that will not pass, a topic that may not be read for instance (others are logged, and
// the client tries again); [msgidem.ErrStuck] when handlers did not heed the end of their contexts; an error of the
// last commit, which costs that messages are delivered again and skipped.
func (c *Consumer) Run(ctx context.Context, client *kgo.Client) error {
	if ctx == nil || client == nil {
		return errors.New("kafkaidem: nil context or client")
	}
	if err := c.check(client); err != nil {
		return err
	}
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(msgidem.ErrStopped)
	c.work = work
	var committer sync.WaitGroup
	stop := make(chan struct{})
	committer.Go(func() { c.commitLoop(stop) })
	err := c.poll(ctx)
	err = errors.Join(err, c.drain())
	close(stop)
	committer.Wait()
	return err
}

// check refuses a client with which messages would be lost.
func (c *Consumer) check(client *kgo.Client) error {
	switch {
	case client.OptValue(kgo.ConsumerGroup) == "":
		return errors.New("kafkaidem: client has no kgo.ConsumerGroup: without a group there are no offsets to commit")
	case client.OptValue(kgo.DisableAutoCommit) != true:
		return errors.New("kafkaidem: client commits by itself, which would lose messages that fail: " +
			"make it with Consumer.Options, among which is kgo.DisableAutoCommit")
	case c.clients.Load() != 1 || c.client != client:
		return errors.New("kafkaidem: client was not made with the Options of this Consumer, or they were used for another one as well")
	case !hears(client, kgo.OnPartitionsRevoked) || !hears(client, kgo.OnPartitionsLost):
		return errors.New("kafkaidem: client has another kgo.OnPartitionsRevoked or OnPartitionsLost than that of Consumer.Options")
	case c.cfg.RevokeTimeout > c.rebalance/2:
		return fmt.Errorf("kafkaidem: Config.RevokeTimeout is %v, want at most half of the client's kgo.RebalanceTimeout, which is %v",
			c.cfg.RevokeTimeout, c.rebalance)
	case c.began.Swap(true):
		return errors.New("kafkaidem: Run was called before; make a new Consumer and a new client")
	}
	return nil
}

// A probe is the context value by which check finds out whether a callback of a client is a Consumer's.
type probe struct{}

// hears reports whether a callback of the client is a Consumer's. The client has wrapped it, so that it has to be
// called: with no partitions, as it is at the end of each session of the group.
func hears(client *kgo.Client, option any) (heard bool) {
	callback, ok := client.OptValue(option).(func(context.Context, *kgo.Client, map[string][]int32))
	if ok {
		callback(context.WithValue(context.Background(), probe{}, &heard), client, nil)
	}
	return heard
}

// all returns the partitions that are in hand.
func (c *Consumer) all() []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.parts))
}

// those returns the partitions of which that are in hand.
func (c *Consumer) those(which map[string][]int32) (list []*partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, numbers := range which {
		for _, n := range numbers {
			if p, ok := c.parts[place{topic, n}]; ok {
				list = append(list, p)
			}
		}
	}
	return list
}

// drop forgets partitions that are sealed.
func (c *Consumer) drop(list []*partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range list {
		p.cancel(ErrRevoked) // for the resources of its context, if for nothing else
		if at := (place{p.topic, p.number}); c.parts[at] == p {
			delete(c.parts, at)
		}
	}
}

// Stats tells what a [Consumer] has done. It is a snapshot; what became of messages is in the handler's.
type Stats struct {
	Partitions int // of which there are messages, or were since they were assigned
	InHand     int // messages that are not settled, or behind one that is not

	// Counted since New.
	Polled       uint64 // messages that were taken in hand
	Commits      uint64
	CommitErrors uint64 // commits that failed and were, or will be, tried again
	FetchErrors  uint64 // errors of polls that did not end the consumer
}

// Stats returns a snapshot.
func (c *Consumer) Stats() Stats {
	s := Stats{
		Polled: c.counters.polled.Load(), Commits: c.counters.commits.Load(),
		CommitErrors: c.counters.commitErrors.Load(), FetchErrors: c.counters.fetchErrors.Load(),
	}
	for _, p := range c.all() {
		p.mu.Lock()
		s.InHand += p.window.len()
		p.mu.Unlock()
		s.Partitions++
	}
	return s
}
