package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// A Store is an [idem.Store] and an [idem.Inspector] whose records are in a Postgres database. It must be made by
// [New]. All methods may be called by any number of goroutines, and any number of processes may share the records.
type Store struct {
	cfg      Config
	pool     *pgxpool.Pool
	queries  queries
	forecast forecast
	room     *waitroom.Room[idem.Outcome]
	hints    *hints        // nil with PollOnly
	undoing  chan struct{} // has one for each goroutine of undo

	// ctx ends when the store is closed, for what runs in the background.
	ctx  context.Context //nolint:containedctx // it is the store's own, see above
	stop context.CancelFunc

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup // only added to while mu is held and the store is not closed
}

var (
	_ idem.Store     = (*Store)(nil)
	_ idem.Inspector = (*Store)(nil)
)

// New returns a store that uses pool, or an error that names the field of cfg that is out of range. It does not
// touch the database: whether that can be reached, and [Migrate] was run, is seen by the first call. The pool stays
// the caller's, who closes it when the store is closed. Unless cfg.PollOnly is set, one connection is taken out of the
// pool for good, and does not count as one of its MaxConns.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: nil pool")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, pool: pool, queries: newQueries(cfg.Schema), undoing: make(chan struct{}, maxUndoing)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.room = waitroom.New[idem.Outcome](waitroom.Config{
		MaxWaiters: cfg.MaxWaiters, MaxWaitersPerKey: cfg.MaxWaitersPerKey, Fallback: s.pause,
	})
	if !cfg.PollOnly {
		s.hints = newHints(s.room, pool, cfg.Schema, cfg.Logger)
		s.spawn(func() { s.hints.listen(s.ctx) })
		s.spawn(func() { s.hints.send(s.ctx) })
	}
	return s, nil
}

// Close ends the store's goroutines and all waits. From then on every method returns [idem.ErrClosed], as do the
// callers that wait. Calls that have begun go on; for what they leave behind Close waits some seconds at most.
// Closing again does nothing. The error is nil. The pool is left open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.room.Close()
	s.stop()
	s.background.Wait()
	return nil
}

// spawn runs f in a goroutine that Close waits for. It returns false, and does not, when the store is closed.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.background.Go(f)
	}
	return !s.closed
}

// check is what every method begins with.
func (s *Store) check(ctx context.Context, scope, key string) error {
	if ctx == nil {
		return errNilContext
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return idem.ErrClosed
	}
	switch limit := s.cfg.MaxKeyBytes; {
	case len(key) == 0 || len(key) > limit:
		return fmt.Errorf("%w: key has %d bytes, want 1 to %d", idem.ErrKey, len(key), limit)
	case len(scope) > limit:
		return fmt.Errorf("%w: scope has %d bytes, want at most %d", idem.ErrKey, len(scope), limit)
	}
	return nil
}

// checkClaim is check for a claim. The zero one is lost.
func (s *Store) checkClaim(ctx context.Context, c *idem.Claim) error {
	if ctx != nil && *c == (idem.Claim{}) {
		c.Key = "none" // any that may be: what is wrong is the token
	}
	if err := s.check(ctx, c.Scope, c.Key); err != nil {
		return err
	}
	if c.Token == 0 || c.Token > math.MaxInt64 {
		return fmt.Errorf("%w: token %d was never granted", idem.ErrClaimLost, c.Token)
	}
	return nil
}

// checkResponse cuts a response that is too large; tooLarge is then ErrTruncated.
func (s *Store) checkResponse(resp *idem.Response) (tooLarge, err error) {
	if resp.TTL < 0 {
		return nil, fmt.Errorf("pgstore: Response.TTL is %v, want zero or more", resp.TTL)
	}
	if resp.Status < math.MinInt32 || resp.Status > math.MaxInt32 {
		return nil, fmt.Errorf("pgstore: Response.Status is %d, want a value of 32 bits", resp.Status)
	}
	size := len(resp.Header) + len(resp.Body)
	if size <= s.cfg.MaxResponseBytes {
		return nil, nil
	}
	resp.Truncated, resp.Body = true, nil
	if len(resp.Header) > s.cfg.MaxResponseBytes {
		resp.Header = nil
	}
	return fmt.Errorf("%w: %d bytes, at most %d are kept", idem.ErrTruncated, size, s.cfg.MaxResponseBytes), nil
}

// hold is how long an outcome is unknown when the lease of a claim of this store has run out.
func (s *Store) hold() time.Duration {
	if s.cfg.OnLeaseExpiry == idem.Hold {
		return s.cfg.TTL
	}
	return 0
}

// expect says that key is about to be waited for; the function it returns ends that.
func (s *Store) expect(scope, key string) (forget func()) {
	if s.hints == nil {
		return func() {}
	}
	return s.hints.expect(scope, key)
}

// changed wakes those who wait for key, here and elsewhere.
func (s *Store) changed(scope, key string) {
	s.room.Hint(scope, key)
	if s.hints != nil {
		s.hints.changed(scope, key)
	}
}

const (
	// firstLook is when who waits looks for the second time. Until then the other processes may not know yet that they
	// are to send hints.
	firstLook = 25 * time.Millisecond

	// Without hints, looks are this far apart: at first, and at last.
	firstPoll = 10 * time.Millisecond
	lastPoll  = 500 * time.Millisecond

	// With hints, they are this far apart, in case one is lost: from the third look on, and at last.
	minFallback = time.Second
	maxFallback = 5 * time.Second

	// spread keeps the processes apart that wait for the same lease to end.
	spread = 20 * time.Millisecond
)

// pause is how long to sleep without a hint, after attempt+1 looks at a key whose lease lasts for after.
func (s *Store) pause(attempt int, after time.Duration) time.Duration {
	longest := min(minFallback<<min(attempt, 3), maxFallback)
	switch {
	case s.cfg.PollOnly:
		longest = min(firstPoll<<min(attempt, 6), lastPoll)
	case attempt == 0:
		longest = firstLook
	}
	return min(after+time.Millisecond+rand.N(spread), longest)
}
