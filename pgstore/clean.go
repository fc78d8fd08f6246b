package pgstore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// A Begin of a key that is being cleaned up waits for the whole statement. So that takes as many rows as it manages in
// batchTime: a thousand on an idle server, and fewer on a busy one.
const (
	firstBatch = 100 // rows
	leastBatch = 25
	mostBatch  = 1000
	batchTime  = 20 * time.Millisecond
)

// Clean deletes what has expired, and returns how many rows that were. It works in batches of 1000 rows at most, or of
// what takes 20 ms or so, each a transaction of its own, and any number of processes may clean at the same time. Nobody
// has to clean for the answers to be right, since what has expired is as good as absent; it is for the table not to
// grow. A row is deleted in the hour after the one for which Begin expected it to expire, with the TTL of the store.
func (s *Store) Clean(ctx context.Context) (deleted int64, err error) {
	if ctx == nil {
		return 0, errNilContext
	}
	for batch := firstBatch; ; {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return deleted, idem.ErrClosed
		}
		if ctx.Err() != nil {
			return deleted, context.Cause(ctx)
		}
		start := time.Now()
		n, moved, err := s.cleanBatch(ctx, batch)
		deleted += n
		if err != nil || n+moved == 0 {
			return deleted, err
		}
		batch = nextBatch(batch, time.Since(start))
	}
}

// nextBatch returns how many rows to take after a batch that took so long.
func nextBatch(batch int, took time.Duration) int {
	switch {
	case took > batchTime:
		return max(batch/2, leastBatch)
	case took < batchTime/4:
		return min(2*batch, mostBatch)
	default:
		return batch
	}
}

// cleanBatch cleans one batch. It may be run again, since what was cleaned is not there any more. A batch that was begun
// is ended although ctx is cancelled: the server would end it anyway, and unseen.
func (s *Store) cleanBatch(ctx context.Context, rows int) (deleted, moved int64, err error) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	tries := retrier{pool: s.pool}
	for {
		err := s.pool.QueryRow(ctx, s.queries.clean, int32(rows)).Scan(&deleted, &moved)
		if err == nil {
			return deleted, moved, nil
		}
		if !tries.again(ctx, err) {
			return 0, 0, failed(ctx, err)
		}
	}
}

// StartCleaner calls Clean now and then, every so often on average, until stop is called or the store is closed. Its
// failures are logged. It panics when every is not above zero.
func (s *Store) StartCleaner(every time.Duration) (stop func()) {
	if every <= 0 {
		panic(fmt.Sprintf("pgstore: cleaner every %v, want more than zero", every))
	}
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	if !s.spawn(func() { defer close(done); s.cleanEvery(ctx, every) }) {
		close(done)
	}
	return sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// cleanEvery is the goroutine of a cleaner.
func (s *Store) cleanEvery(ctx context.Context, every time.Duration) {
	every = min(every, math.MaxInt64/2) // half as long again is still a duration
	for {
		if n, err := s.Clean(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("pgstore: cleaning failed", "deleted", n, "error", err)
		}
		// The processes of a fleet that were started together should not clean together.
		timer := time.NewTimer(every/2 + rand.N(every))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
