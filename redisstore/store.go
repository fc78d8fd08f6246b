package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// ErrReplicas: fewer replicas than Config.MinReplicas have the write. From Begin, which has given the claim up
// again, and from all others that write, whose result the primary has. Calling Complete or Extend again is safe, and
// waits for the replicas again. Resolve and Forget find what they did the first time: [idem.ErrNoClaim], and false.
var ErrReplicas = errors.New("redisstore: too few replicas")

var (
	errNilContext = errors.New("redisstore: nil context")
	errNilClient  = errors.New("redisstore: nil client")
	errRing       = errors.New("redisstore: a *redis.Ring moves keys to another server when its own client misses some heartbeats, " +
		"so two callers would own one key; use a *redis.ClusterClient, or one store for each server")
)

// A Store is an [idem.Store] and an [idem.Inspector] whose records are on a Redis server. It must be made by
// [New] or [NewWith]. All methods may be called by any number of goroutines.
type Store struct {
	adapter Adapter
	cfg     Config
	unknown time.Duration // for how long a key is after its lease
	lease   span          // the default
	ttl     span          // the default
	gone    span          // of a record that is to count no more
	keys    string        // what the names of all records begin with
	ends    ends          // of calls that settle a claim

	closed atomic.Bool
	room   *waitroom.Room[string]
	crew   crew
	hints  hints
}

var (
	_ idem.Store     = (*Store)(nil)
	_ idem.Inspector = (*Store)(nil)
)

// New returns a store on the servers of a go-redis client: a [redis.Client], with Sentinel or without, or a
// [redis.ClusterClient]. It sends nothing yet. The client stays the caller's, who closes it after the store.
//
// The error names the field of cfg that is out of range. A [redis.Ring] is refused: each process that cannot reach a
// server for a moment moves its keys to another one, where they are free, while others still use the first. Who has
// several servers uses a cluster, or makes a store for each and chooses by key, the same one in all processes.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	if client == nil {
		return nil, errNilClient
	}
	if _, ok := client.(*redis.Ring); ok {
		return nil, errRing
	}
	return NewWith(newGoRedis(client), cfg)
}

// NewWith is [New] for another client library.
func NewWith(adapter Adapter, cfg Config) (*Store, error) {
	if adapter == nil {
		return nil, errNilClient
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		adapter: adapter,
		cfg:     cfg,
		keys:    cfg.Prefix + ":",
		room: waitroom.New[string](waitroom.Config{
			MaxWaiters:       cfg.MaxWaiters,
			MaxWaitersPerKey: cfg.MaxWaitersPerKey,
		}),
	}
	if cfg.OnLeaseExpiry == idem.Hold {
		s.unknown = min(cfg.TTL, maxDuration)
	}
	s.lease, s.ttl, s.gone = s.leaseOf(cfg.Lease), s.ttlOf(cfg.TTL), newSpan(0, 0, s.unknown)
	s.ends.bound = settleTimeout
	s.crew.init()
	s.hints.init(cfg.Prefix)
	if cfg.Logger.Enabled(context.Background(), levelProbe) {
		s.crew.run(s.probe)
	}
	return s, nil
}

// Begin implements [idem.Store]. When it fails, because ctx ends before the server has answered for instance, and the
// server granted the claim all the same, the claim is given up in the background.
func (s *Store) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	key, err := s.check(ctx, req.Scope, req.Key)
	if err != nil {
		return idem.Outcome{}, err
	}
	if req.Lease < 0 {
		return idem.Outcome{}, fmt.Errorf("redisstore: Request.Lease is %v, want zero or more", req.Lease)
	}
	lease := s.leaseOf(req.Lease)
	var text string
	if req.Wait {
		text, err = s.wait(ctx, &req, key, lease)
	} else {
		text, err = s.ask(ctx, &req, key, lease)
	}
	if err != nil {
		return idem.Outcome{}, err
	}
	return outcome(text, &req, key, lease.d)
}

// ask has the server run begin once, and gives a claim up that may have been granted to nobody.
func (s *Store) ask(ctx context.Context, req *idem.Request, key string, lease span) (string, error) {
	nonce := rand.Uint64()
	args := []string{lease.begin(nonce, req.Fingerprint), s.hints.channel}
	if !req.Wait {
		args = args[:1]
	}
	text, err := s.call(ctx, begin, key, args...)
	switch {
	case text == "O": // what was granted is nobody's
		s.undo(ctx, key, nonce)
		return "", fmt.Errorf("%w: the server had no room when begin was sent again", idem.ErrFull)
	case err == nil:
		return text, nil
	case isOOM(err):
		return "", fmt.Errorf("%w: %w", idem.ErrFull, err)
	default:
		s.undo(ctx, key, nonce)
		return "", err
	}
}

// Complete implements [idem.Store]. That ctx was cancelled does not stop it; a deadline that lies ahead does, and so do
// five seconds. A response that is larger than Config.MaxResponseBytes is recorded as Truncated.
func (s *Store) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	key, token, err := s.locate(ctx, &c)
	if err != nil {
		return err
	}
	tooLarge, err := s.fit(&resp)
	if err != nil {
		return err
	}
	ttl := s.ttlOf(resp.TTL)
	text, err := s.settle(ctx, complete, key, ttl.complete(c.Fingerprint, token), packResponse(&resp))
	if err != nil {
		return err
	}
	s.room.Hint(c.Scope, c.Key)
	if err := verdict(text); err != nil {
		return err
	}
	return tooLarge
}

// Abandon implements [idem.Store], with a ctx as Complete's.
func (s *Store) Abandon(ctx context.Context, c idem.Claim) error {
	if c.Token == 0 && ctx != nil {
		return nil
	}
	key, token, err := s.locate(ctx, &c)
	if err != nil {
		return err
	}
	text, err := s.settle(ctx, abandon, key, s.gone.abandon('t', token))
	if err != nil {
		return err
	}
	s.room.Hint(c.Scope, c.Key)
	return verdict(text)
}

// Extend implements [idem.Store], with a ctx as Complete's.
func (s *Store) Extend(ctx context.Context, c idem.Claim, lease time.Duration) error {
	key, token, err := s.locate(ctx, &c)
	if err != nil {
		return err
	}
	if lease < 0 {
		return fmt.Errorf("redisstore: lease is %v, want zero or more", lease)
	}
	moved := s.leaseOf(lease)
	text, err := s.settle(ctx, extend, key, moved.extend(c.Fingerprint, token))
	if err != nil {
		return err
	}
	return verdict(text)
}

// Close ends all waits and the store's goroutines; from then on every method returns [idem.ErrClosed]. Calls that
// are on their way go on. The client stays open, and so do the records. Closing again
// does nothing. The error is nil.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.room.Close()
	s.crew.stop()
	return nil
}

// verdict turns the reply of an owner's script into an error.
func verdict(text string) error {
	switch text {
	case "K":
		return nil
	case "L":
		return idem.ErrClaimLost
	case "N":
		return idem.ErrNoClaim
	default:
		return fmt.Errorf("%w: %.20q", errReply, text)
	}
}

// check returns the record's name, or an error for what no method takes.
func (s *Store) check(ctx context.Context, scope, key string) (string, error) {
	switch limit := s.cfg.MaxKeyBytes; {
	case ctx == nil:
		return "", errNilContext
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case s.closed.Load():
		return "", idem.ErrClosed
	case len(key) == 0 || len(key) > limit:
		return "", fmt.Errorf("%w: key has %d bytes, want 1 to %d", idem.ErrKey, len(key), limit)
	case len(scope) > limit:
		return "", fmt.Errorf("%w: scope has %d bytes, want at most %d", idem.ErrKey, len(scope), limit)
	default:
		return s.redisKey(scope, key), nil
	}
}

// locate returns the name of a claim's record, and the token as servers know it. A claim that no server
// granted for the key, the zero Claim among them, is lost.
func (s *Store) locate(ctx context.Context, c *idem.Claim) (key string, granted uint64, err error) {
	switch {
	case ctx == nil:
		return "", 0, errNilContext
	case c.Token == 0:
		return "", 0, fmt.Errorf("%w: token 0 was never granted", idem.ErrClaimLost)
	}
	if key, err = s.check(context.WithoutCancel(ctx), c.Scope, c.Key); err != nil {
		return "", 0, err
	}
	granted, ok := micros(c.Token, key)
	if !ok {
		return "", 0, fmt.Errorf("%w: token %d was never granted for this key", idem.ErrClaimLost, c.Token)
	}
	return key, granted, nil
}

// fit cuts a response that is too large; tooLarge is then ErrTruncated.
func (s *Store) fit(resp *idem.Response) (tooLarge, err error) {
	if resp.TTL < 0 {
		return nil, fmt.Errorf("redisstore: Response.TTL is %v, want zero or more", resp.TTL)
	}
	if resp.Status < math.MinInt32 || resp.Status > math.MaxInt32 {
		return nil, fmt.Errorf("redisstore: Response.Status is %d, want a value of 32 bits", resp.Status)
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

// leaseOf returns the span of a lease; zero is the default.
func (s *Store) leaseOf(d time.Duration) span {
	if d == 0 || d == s.lease.d {
		return s.lease
	}
	return newSpan(d, s.unknown, s.unknown)
}

// ttlOf returns the span of a response's life; zero is the default.
func (s *Store) ttlOf(d time.Duration) span {
	if d == 0 || d == s.ttl.d {
		return s.ttl
	}
	return newSpan(d, 0, s.unknown)
}
