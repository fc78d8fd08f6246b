package idem

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sweepSlice is how many records the sweeper reclaims in one hold of a shard's lock. Each costs some cache
	// misses, and a caller that finds the lock taken waits for all of them: with 8 the slowest of a thousand
	// replays took 1.6 times as long (BenchmarkTail), while locking more often costs next to nothing.
	sweepSlice = 2

	// helpSlice is how many due records a Begin reclaims that adds one, since the sweeper may get too little of
	// the processors under load. They are more than one, so that records cannot come faster than they go
	// (TestFreshBeginsReclaim). Their memory is used again while it is in the cache.
	helpSlice = 2

	// sweepPause is the least time between two rounds, a tick of the wheel: a flood of short leases
	// does not make the sweeper spin.
	sweepPause = time.Duration(1 << tickBits)

	never = math.MaxInt64
)

// A sweeper is the engine's one goroutine. It sleeps until the earliest deadline, then reclaims what is due
// in all shards, slice by slice. It is started by the first record.
type sweeper struct {
	wakeAt atomic.Int64 // when it will look again, in ns since the engine's start
	wake   chan struct{}
	done   chan struct{} // closed by stop
	ended  chan struct{} // closed when the goroutine has ended, or will never start
	once   sync.Once

	telling chan struct{} // has room for who tells the logger
}

func (w *sweeper) init() {
	w.wakeAt.Store(never)
	w.wake = make(chan struct{}, 1)
	w.done = make(chan struct{})
	w.ended = make(chan struct{})
	w.telling = make(chan struct{}, 1)
}

// wakeBefore makes the sweeper look before t at the latest.
func (e *Engine) wakeBefore(t int64) {
	if t < e.sweeper.wakeAt.Load() {
		e.nudge()
	}
}

// wantClock is called while replays are frequent, and keeps the coarse clock running.
func (e *Engine) wantClock() {
	if !e.clock.wanted.Load() {
		e.clock.wanted.Store(true)
	}
	// Whether it was wanted before or not: who found it running may say so when it has stopped, and nobody heard.
	if e.clock.coarse.Load() == 0 {
		e.nudge()
	}
}

func (e *Engine) nudge() {
	e.sweeper.once.Do(func() { go e.sweep() })
	select {
	case e.sweeper.wake <- struct{}{}:
	default: // it has been told
	}
}

// stopSweeper ends the goroutine and waits for it.
func (e *Engine) stopSweeper() {
	e.sweeper.once.Do(func() { close(e.sweeper.ended) })
	close(e.sweeper.done)
	<-e.sweeper.ended
}

func (e *Engine) sweep() {
	defer close(e.sweeper.ended)
	timer := time.NewTimer(sweepPause)
	defer timer.Stop()
	for {
		// While this round looks at the shards, every earlier deadline is to wake it again: the round
		// may have passed that shard already.
		e.sweeper.wakeAt.Store(never)
		next := e.sweepRound()
		e.tellLapsed()
		if now := e.clock.now(); e.clock.tick(now) {
			next = min(next, now+int64(coarseTick))
		}
		e.sweeper.wakeAt.Store(next)
		if !e.sleepUntil(next, timer) {
			return
		}
	}
}

// sweepRound reclaims all that is due and returns the earliest deadline that is left.
func (e *Engine) sweepRound() (next int64) {
	for {
		next = never
		now, more := e.clock.now(), false
		e.clock.tick(now)
		for i := range e.shards {
			s := &e.shards[i]
			if s.due.Load() <= now && s.expire(now, sweepSlice) {
				more = true
			}
			next = min(next, s.due.Load())
		}
		if !more {
			return next
		}
		runtime.Gosched() // a million records may be due, on one processor
	}
}

// tellLapsed has the logger told of leases that ran out, in a goroutine of its own: a logger that is slow, or calls the
// engine, must not hold up the sweeper, for which waiters wait. What comes meanwhile is told after it, in one line.
func (e *Engine) tellLapsed() {
	if e.cfg.Logger == nil || e.lapsed.Load() == 0 {
		return
	}
	select {
	case e.sweeper.telling <- struct{}{}:
		go e.tell()
	default:
	}
}

func (e *Engine) tell() {
	defer func() {
		_ = recover() // a logger that panics must not end the process
		<-e.sweeper.telling
		if e.lapsed.Load() > 0 {
			e.nudge()
		}
	}()
	e.logLapsed(e.lapsed.Swap(0))
}

// stopTelling waits for the logger, though not for one that hangs, or that is calling Close.
func (e *Engine) stopTelling() {
	select {
	case e.sweeper.telling <- struct{}{}: // for good
	case <-time.After(100 * time.Millisecond):
	}
}

func (e *Engine) logLapsed(n int64) {
	if e.cfg.OnLeaseExpiry == Hold {
		e.cfg.Logger.Warn("idem: leases ran out: whether the operations took effect is unknown, and somebody has to resolve or forget them", "claims", n)
	} else {
		e.cfg.Logger.Warn("idem: leases ran out before their owners completed: the operations may run again", "claims", n)
	}
}

// sleepUntil waits for the pause, and then for t or a nudge. It reports false when the engine closes.
func (e *Engine) sleepUntil(t int64, timer *time.Timer) bool {
	timer.Reset(sweepPause)
	select {
	case <-timer.C:
	case <-e.sweeper.done:
		return false
	}
	if d := t - e.clock.now(); t == never {
		timer.Stop()
	} else {
		timer.Reset(time.Duration(d))
	}
	select {
	case <-timer.C:
	case <-e.sweeper.wake:
	case <-e.sweeper.done:
		return false
	}
	return true
}
