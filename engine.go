package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"math"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Config configures an [Engine]. The zero Config works.
type Config struct {
	// Shards is how many parts the engine locks one by one: a power of two up to 65536. Zero means 32
	// for each processor that GOMAXPROCS allows. A shard has room for 130 000 claims in progress.
	Shards int

	// TTL is how long a response is replayed unless it says otherwise itself. Zero means 24 hours.
	TTL time.Duration

	// Lease is how long a claim lasts unless the request says otherwise. Zero means 30 seconds.
	Lease time.Duration

	// OnLeaseExpiry is what happens to a key whose owner's lease runs out. Zero means TakeOver.
	OnLeaseExpiry LeasePolicy

	// MaxKeyBytes bounds keys, and scopes likewise; at most 65535. Zero means 255.
	MaxKeyBytes int

	// MaxResponseBytes bounds a response's header and body together. Zero means 1 MiB.
	MaxResponseBytes int

	// MaxRecords bounds the records that are held at a time; those whose time ran out make room within milliseconds. Zero
	// means that only MaxBytes does.
	MaxRecords int

	// MaxBytes bounds the memory for records. It is counted in slabs of up to 128 KiB, and responses of
	// claims that were granted may pass it. At least 1 MiB; zero means 4 GiB, about 12 million records
	// of 300 bytes.
	MaxBytes int

	// MaxWaiters bounds the callers that wait at a time. Zero means 65536.
	MaxWaiters int

	// MaxWaitersPerKey bounds those that wait for one key. Zero means 1024.
	MaxWaitersPerKey int

	// Logger is told what no caller can see: that leases ran out before their owners completed, and how many since it was
	// told last, by the engine's goroutine; and what Restore found over. Nil means nobody is.
	Logger *slog.Logger
}

const maxShards = 1 << 16

// LeasePolicy is what happens to a key whose owner's lease runs out before it completes.
type LeasePolicy uint8

const (
	// TakeOver frees the key: the operation runs again. For effects that may happen twice in the worst
	// case, or that are fenced downstream by [Claim.Token].
	TakeOver LeasePolicy = iota

	// Hold makes the key Unknown, until somebody resolves or forgets it, its owner completes after all,
	// or the engine's TTL has passed since. For effects that must never run twice.
	Hold
)

// An Engine is the in-memory [Store] and [Inspector]. It must be made by [New]. All methods may be called
// by any number of goroutines. What it knows ends with the process, but for a [Engine.Snapshot].
type Engine struct {
	cfg    Config
	seed   maphash.Seed
	clock  clock
	shift  uint8 // hash bits that do not choose the shard
	shards []shard
	hits   hits

	// hottest is the hot record that was published last, of whichever shard, or nil. It saves the one key that
	// everybody asks for the hash, a fifth of its replay.
	hottest atomic.Pointer[hotRecord]
	_       [128]byte // what is above is seldom written to

	// tokens is the token granted last. It starts from the wall clock in µs, so that tokens grow over a
	// restart, as long as fewer than a million claims a second are granted on average.
	tokens atomic.Uint64
	_      [120]byte // each claim writes to it

	waiting atomic.Int64
	bytes   atomic.Int64
	records atomic.Int64 // kept only when cfg.MaxRecords is set
	lapsed  atomic.Int64 // leases that ran out and that the logger was not told of

	sweeper   sweeper
	closeOnce sync.Once
	saving    sync.Mutex  // held while a file is written
	tier      atomic.Bool // a TieredStore has it
}

var (
	_ Store     = (*Engine)(nil)
	_ Inspector = (*Engine)(nil)
)

var errNilContext = errors.New("idem: nil context")

// New returns an engine that is ready for use, or an error that names the field of cfg that is out of
// range. Close it when it is no longer needed.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, seed: maphash.MakeSeed(), shards: make([]shard, cfg.Shards)}
	e.clock.init()
	e.shift = uint8(64 - bits.TrailingZeros(uint(cfg.Shards)))
	e.tokens.Store(uint64(e.clock.start.UnixMicro()))
	e.hits.init(runtime.GOMAXPROCS(0))
	e.sweeper.init()
	for i := range e.shards {
		s := &e.shards[i]
		s.engine, s.number = e, uint32(i)
		s.wheel.init(i)
		s.due.Store(never)
	}
	return e, nil
}

// validate puts the defaults in and checks the ranges.
func (c *Config) validate() error {
	if c.Shards == 0 {
		c.Shards = defaultShards(runtime.GOMAXPROCS(0))
	}
	c.TTL = orDefault(c.TTL, 24*time.Hour)
	c.Lease = orDefault(c.Lease, 30*time.Second)
	for _, f := range []struct {
		name              string
		value             *int
		zero, least, most int
	}{
		{"Shards", &c.Shards, 0, 1, maxShards},
		{"MaxKeyBytes", &c.MaxKeyBytes, 255, 1, math.MaxUint16},
		{"MaxResponseBytes", &c.MaxResponseBytes, 1 << 20, 1, math.MaxInt32},
		{"MaxRecords", &c.MaxRecords, 0, 0, math.MaxInt},
		{"MaxBytes", &c.MaxBytes, min(4<<30, math.MaxInt), 1 << 20, math.MaxInt},
		{"MaxWaiters", &c.MaxWaiters, 1 << 16, 1, math.MaxInt32},
		{"MaxWaitersPerKey", &c.MaxWaitersPerKey, 1 << 10, 1, math.MaxInt32},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < f.least || *f.value > f.most {
			return fmt.Errorf("idem: Config.%s is %d, want %d to %d", f.name, *f.value, f.least, f.most)
		}
	}
	switch {
	case c.Shards&(c.Shards-1) != 0:
		return fmt.Errorf("idem: Config.Shards is %d, want a power of two", c.Shards)
	case c.TTL < 0:
		return fmt.Errorf("idem: Config.TTL is %v, want zero, for the default, or more", c.TTL)
	case c.Lease < 0:
		return fmt.Errorf("idem: Config.Lease is %v, want zero, for the default, or more", c.Lease)
	case c.OnLeaseExpiry > Hold:
		return fmt.Errorf("idem: Config.OnLeaseExpiry is %d, want TakeOver or Hold", c.OnLeaseExpiry)
	}
	return nil
}

// defaultShards is a power of two.
func defaultShards(procs int) int { return min(1<<bits.Len(uint(32*procs-1)), maxShards) }

// Begin implements [Store]. A replay that finds room in req.Buf allocates nothing, nor do the answers
// InProgress and Mismatch.
func (e *Engine) Begin(ctx context.Context, req Request) (out Outcome, err error) {
	if err := e.checkBegin(ctx, &req); err != nil {
		return Outcome{}, err
	}
	if hot := e.hottest.Load(); hot != nil && hot.replay(&req, &out) {
		return out, nil
	}
	s := e.shardOf(req.Scope, req.Key)
	if s.replayHot(&req, &out) {
		return out, nil
	}
	h := e.hash(req.Scope, req.Key)
	for {
		w, err := s.begin(&req, h, &out)
		if w == nil {
			return out, err
		}
		if s.await(ctx, w, &req, h, &out) {
			return out, nil
		}
		if ctx.Err() != nil {
			return Outcome{}, context.Cause(ctx)
		}
	}
}

func (e *Engine) checkBegin(ctx context.Context, req *Request) error {
	if ctx == nil {
		return errNilContext
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if req.Lease < 0 {
		return fmt.Errorf("idem: Request.Lease is %v, want zero or more", req.Lease)
	}
	return e.checkKey(req.Scope, req.Key)
}

func (e *Engine) checkKey(scope, key string) error {
	if limit := e.cfg.MaxKeyBytes; len(key) > 0 && len(key) <= limit && len(scope) <= limit {
		return nil
	}
	return e.keyError(scope, key)
}

func (e *Engine) keyError(scope, key string) error {
	if len(key) == 0 || len(key) > e.cfg.MaxKeyBytes {
		return fmt.Errorf("%w: key has %d bytes, want 1 to %d", ErrKey, len(key), e.cfg.MaxKeyBytes)
	}
	return fmt.Errorf("%w: scope has %d bytes, want at most %d", ErrKey, len(scope), e.cfg.MaxKeyBytes)
}

// Complete implements [Store]. It does not look at whether ctx is done.
func (e *Engine) Complete(ctx context.Context, c Claim, resp Response) error {
	s, h, err := e.locate(ctx, &c)
	if err != nil {
		return err
	}
	wanted := resp.Truncated
	tooLarge, err := e.checkResponse(&resp)
	if err != nil {
		return err
	}
	truncated, err := s.complete(&c, h, &resp, ownCell(c.Scope, c.Key, &resp))
	return cmp.Or(err, lessKept(truncated, wanted, tooLarge))
}

// lessKept is the error of a response of which less was recorded than was to be. truncated: it is recorded as that;
// wanted: it was that before; tooLarge: why it no longer is what it was.
func lessKept(truncated, wanted bool, tooLarge error) error {
	if !truncated || wanted && tooLarge == nil {
		return nil
	}
	return cmp.Or(tooLarge, ErrTruncated)
}

// Abandon implements [Store]. It does not look at whether ctx is done.
func (e *Engine) Abandon(ctx context.Context, c Claim) error {
	if c.Token == 0 && ctx != nil {
		return nil
	}
	s, h, err := e.locate(ctx, &c)
	if err != nil {
		return err
	}
	return s.abandon(&c, h)
}

// Extend implements [Store]. It does not look at whether ctx is done.
func (e *Engine) Extend(ctx context.Context, c Claim, lease time.Duration) error {
	s, h, err := e.locate(ctx, &c)
	if err != nil {
		return err
	}
	if lease < 0 {
		return fmt.Errorf("idem: lease is %v, want zero or more", lease)
	}
	return s.extend(&c, h, lease)
}

// locate checks a claim and finds its shard and hash. A claim that was never granted here, the zero Claim among
// them, is lost; one that does not know any more who granted it may come from before a restart.
func (e *Engine) locate(ctx context.Context, c *Claim) (*shard, uint32, error) {
	switch {
	case ctx == nil:
		return nil, 0, errNilContext
	case c.origin != nil && c.origin != e:
		return nil, 0, fmt.Errorf("%w: another engine granted it", ErrClaimLost)
	case c.Token == 0 || c.Token > e.tokens.Load():
		return nil, 0, fmt.Errorf("%w: token %d was never granted", ErrClaimLost, c.Token)
	}
	if err := e.checkKey(c.Scope, c.Key); err != nil {
		return nil, 0, err
	}
	return e.shardOf(c.Scope, c.Key), e.hash(c.Scope, c.Key), nil
}

// checkResponse cuts a response that is too large; tooLarge is then ErrTruncated.
func (e *Engine) checkResponse(resp *Response) (tooLarge, err error) {
	if resp.TTL < 0 {
		return nil, fmt.Errorf("idem: Response.TTL is %v, want zero or more", resp.TTL)
	}
	if resp.Status < math.MinInt32 || resp.Status > math.MaxInt32 {
		return nil, fmt.Errorf("idem: Response.Status is %d, want a value of 32 bits", resp.Status)
	}
	if len(resp.Header)+len(resp.Body) <= e.cfg.MaxResponseBytes {
		return nil, nil
	}
	tooLarge = fmt.Errorf("%w: %d bytes, at most %d are kept", ErrTruncated,
		len(resp.Header)+len(resp.Body), e.cfg.MaxResponseBytes)
	resp.Truncated = true
	resp.Body = nil
	if len(resp.Header) > e.cfg.MaxResponseBytes {
		resp.Header = nil
	}
	return tooLarge, nil
}

// ownCell lays a record that is too large to share a slab into memory of its own. It does so before the
// shard is locked, since copying a megabyte would keep others waiting.
func ownCell(scope, key string, resp *Response) record {
	size := recordSize(scope, key, len(resp.Header)+len(resp.Body))
	if size <= maxShared {
		return nil
	}
	rec := record(make([]byte, size))
	rec.init(scope, key)
	rec.putPayload(resp)
	return rec
}

// Lookup implements [Inspector].
func (e *Engine) Lookup(ctx context.Context, scope, key string) (Record, bool, error) {
	if err := e.checkLook(ctx, scope, key); err != nil {
		return Record{}, false, err
	}
	return e.shardOf(scope, key).lookup(scope, key, e.hash(scope, key))
}

// Forget implements [Inspector].
func (e *Engine) Forget(ctx context.Context, scope, key string) (bool, error) {
	if err := e.checkLook(ctx, scope, key); err != nil {
		return false, err
	}
	return e.shardOf(scope, key).forget(scope, key, e.hash(scope, key))
}

// Resolve implements [Inspector].
func (e *Engine) Resolve(ctx context.Context, scope, key string, resp Response) error {
	if err := e.checkLook(ctx, scope, key); err != nil {
		return err
	}
	wanted := resp.Truncated
	tooLarge, err := e.checkResponse(&resp)
	if err != nil {
		return err
	}
	s := e.shardOf(scope, key)
	truncated, err := s.resolve(scope, key, e.hash(scope, key), &resp, ownCell(scope, key, &resp))
	return cmp.Or(err, lessKept(truncated, wanted, tooLarge))
}

func (e *Engine) checkLook(ctx context.Context, scope, key string) error {
	if ctx == nil {
		return errNilContext
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return e.checkKey(scope, key)
}

// All returns the records that are live when the iteration comes to them, in no order. A record that stays
// throughout is yielded once; no lock is held while the loop body runs.
func (e *Engine) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		var buf []Record
		for i := range e.shards {
			for cursor, more := uint32(0), true; more; more = cursor != 0 {
				buf, cursor = e.shards[i].list(cursor, buf[:0])
				for _, r := range buf {
					if !yield(r) {
						return
					}
				}
			}
		}
	}
}

// Close drops all records. From then on every method returns ErrClosed, as do the callers that wait; when
// Close has returned, the engine's goroutines have ended, but for one that has been in Config.Logger for more than a
// tenth of a second. Closing again does nothing. The error is nil.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		for i := range e.shards {
			e.shards[i].close()
		}
		e.stopSweeper()
		e.stopTelling()
	})
	return nil
}

// shardOf chooses a key's shard. The hash is not seeded: keys can be minted that all go to one shard, which
// costs their sender parallelism and nobody else anything.
func (e *Engine) shardOf(scope, key string) *shard {
	h := xxhash.Sum64String(key)
	if scope != "" {
		h ^= bits.RotateLeft64(xxhash.Sum64String(scope), 32)
	}
	return &e.shards[h>>e.shift]
}

// hash is the hash under which a shard's index keeps a key. It is seeded: keys that collide cannot be minted
// by who does not know the seed.
func (e *Engine) hash(scope, key string) uint32 {
	h := maphash.String(e.seed, key)
	if scope != "" {
		h = foldHash(maphash.String(e.seed, scope), h)
	}
	return uint32(h >> 32)
}

// hashOf is hash of a record's own key.
func (e *Engine) hashOf(r record) uint32 {
	h := maphash.Bytes(e.seed, r.key())
	if scope := r.scope(); len(scope) > 0 {
		h = foldHash(maphash.Bytes(e.seed, scope), h)
	}
	return uint32(h >> 32)
}

// foldHash makes one hash of two. Multiplying by an odd number makes their order matter.
func foldHash(scope, key uint64) uint64 { return scope*0x9e3779b97f4a7c15 ^ key }
