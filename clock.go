package idem

import (
	"sync/atomic"
	"time"
)

// A clock counts nanoseconds since the engine's start, monotonically: setting the machine's time moves
// nothing. Beside the exact reading it has a coarse one, which the sweeper refreshes every coarseTick
// while replays are frequent, since reading the exact one costs as much as the rest of a replay.
type clock struct {
	start     time.Time
	startWall int64        // start as ns since 1970
	coarse    atomic.Int64 // zero: stopped
	wanted    atomic.Bool  // set by frequent replays, cleared by the sweeper
	idle      int          // ticks since it was wanted; the sweeper's
}

const (
	coarseTick = 5 * time.Millisecond
	coarseIdle = 20 // ticks without frequent replays after which the coarse clock stops

	// farOff is how far a deadline must lie ahead of the coarse reading for the exact one not to
	// matter. The reading is behind by a tick, or by as long as the sweeper could not run: when the whole process was
	// stopped for longer than this, replays may go on past a deadline until the sweeper has its turn.
	farOff = int64(10 * time.Second)

	// usedEvery is how many replays of one shard make one sign of use: rare enough that a quiet
	// server never starts the coarse clock.
	usedEvery = 64
)

func (c *clock) init() {
	c.start = time.Now()
	c.startWall = c.start.UnixNano()
}

// now is the exact reading.
func (c *clock) now() int64 { return int64(time.Since(c.start)) }

// wall is the time of day at t. It is reckoned from the start, so that it is in step with the clock.
func (c *clock) wall(t int64) time.Time { return time.Unix(0, c.startWall+t) }

// far reports whether the coarse reading shows that t is still well ahead.
func (c *clock) far(t int64) bool {
	now := c.coarse.Load()
	return now != 0 && t-now > farOff
}

// use is told of the nth replay that the coarse reading answered, so that it goes on.
func (c *clock) use(n uint64) {
	if n%usedEvery == 0 && !c.wanted.Load() {
		c.wanted.Store(true)
	}
}

// tick is called by the sweeper: it refreshes the coarse reading, starts it when it is wanted, stops it when
// nobody uses it any more, and reports whether it runs.
func (c *clock) tick(now int64) bool {
	switch {
	case c.wanted.Load():
		c.wanted.Store(false)
		c.idle = 0
	case c.coarse.Load() == 0:
		return false
	default:
		c.idle++
	}
	if c.idle > coarseIdle {
		c.coarse.Store(0)
		// Who wishes for it from here on sees that it stands, and nudges the sweeper; who did before is
		// seen here.
		if !c.wanted.Load() {
			return false
		}
		c.idle = 0
	}
	c.coarse.Store(max(now, 1))
	return true
}

// after returns now+d, or the end of time when that is beyond it.
func after(now int64, d time.Duration) int64 {
	if t := now + int64(d); t >= now {
		return t
	}
	return 1<<63 - 1
}
