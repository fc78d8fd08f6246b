package pgstore

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

const (
	// hintPause is how long hints are gathered at a time, at most; half of it at least. Commits that notify are
	// serialised by Postgres, so each process has one in some milliseconds, and not one for each Complete.
	hintPause = 6 * time.Millisecond

	// presencePause is how often a process says that it waits for something, and presenceLife for how long the others
	// believe it.
	presencePause = time.Second
	presenceLife  = 3 * presencePause

	// maxHints bounds the hints that are gathered. What is over is left out: those who wait look by themselves, too.
	maxHints = 1 << 13

	// hintsPerNote keeps a notification below the 8000 bytes that it may have.
	hintsPerNote = 600

	// reconnectPause is how soon a connection that listens is replaced when it is lost.
	reconnectPause = 500 * time.Millisecond
)

// What a notification begins with: hashes of keys follow, or the name of a store in which somebody waits.
const (
	hintNote     = "h"
	presenceNote = "w"
)

// flushSQL sends the notifications $2 on the channel $1. A commit that notifies is written to the log, but that a hint
// survives a crash is not worth waiting for the disk. announceSQL sends one in a transaction of the caller's, whose
// commit is to be as durable as it was.
const (
	flushSQL    = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1::text, note) FROM unnest($2::text[]) AS note`
	announceSQL = `SELECT pg_notify($1::text, $2::text)`
)

// hints wakes those who wait in other processes, and lets itself be woken by them.
//
// Every process with a [Store] listens. One in which somebody waits says so each second; while no
// other process does, nobody sends hints. A hint is the hash of a key, so that keys are not shown to who listens, and a
// notification holds many. All of this may be lost without harm: those who wait look by themselves now and then.
type hints struct {
	room    *waitroom.Room[idem.Outcome]
	pool    *pgxpool.Pool
	channel string
	self    string // this store's name among those that wait
	logger  *slog.Logger
	start   time.Time
	wake    chan struct{} // has room for one: there is something to send

	// present is until when some other process waits, in ns since start. While nothing is heard at all it is for
	// ever, since anybody may wait then.
	present atomic.Int64

	mu      sync.Mutex
	waiting map[uint64]map[keyName]int // how many wait here, by hash and key
	pending map[uint64]struct{}        // what is to be sent
	dueSelf bool                       // our presence is news
}

type keyName struct{ scope, key string }

const forever = math.MaxInt64

func newHints(room *waitroom.Room[idem.Outcome], pool *pgxpool.Pool, schema string, logger *slog.Logger) *hints {
	h := &hints{
		room: room, pool: pool, logger: logger, start: time.Now(),
		// A schema's name may be as long as a channel's.
		channel: "idem_" + strconv.FormatUint(hashKey(schema, ""), 16),
		self:    strconv.FormatUint(rand.Uint64(), 36),
		wake:    make(chan struct{}, 1),
		waiting: make(map[uint64]map[keyName]int),
		pending: make(map[uint64]struct{}),
	}
	h.present.Store(forever)
	return h
}

// hashKey is what a key is called in hints. That two keys may have one hash costs a look.
func hashKey(scope, key string) uint64 {
	h := fnv.New64a()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(scope)))
	_, _ = h.Write(n[:]) // it never fails
	_, _ = h.Write([]byte(scope))
	_, _ = h.Write([]byte(key))
	return h.Sum64()
}

// hintSize is the length of what encodeHash returns.
const hintSize = 11

func encodeHash(hash uint64) string {
	return base64.RawURLEncoding.EncodeToString(binary.LittleEndian.AppendUint64(nil, hash))
}

// expect registers a key that is about to be waited for. The function it returns ends that.
func (h *hints) expect(scope, key string) (forget func()) {
	hash, name := hashKey(scope, key), keyName{scope, key}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) == 0 {
		h.dueSelf = true
		h.signal()
	}
	if h.waiting[hash] == nil {
		h.waiting[hash] = make(map[keyName]int)
	}
	h.waiting[hash][name]++
	return func() { h.forget(hash, name) }
}

func (h *hints) forget(hash uint64, name keyName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := h.waiting[hash]
	if names[name]--; names[name] == 0 {
		delete(names, name)
	}
	if len(names) == 0 {
		delete(h.waiting, hash)
	}
}

// wantedElsewhere tells whether another process waits for anything, as far as is known.
func (h *hints) wantedElsewhere() bool { return int64(time.Since(h.start)) < h.present.Load() }

// wanted tells whether anybody waits for anything.
func (h *hints) wanted() bool {
	if h.wantedElsewhere() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
}

// changed has the other processes told that something happened to a key.
func (h *hints) changed(scope, key string) {
	if !h.wantedElsewhere() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) < maxHints {
		h.pending[hashKey(scope, key)] = struct{}{}
	}
	h.signal()
}

// signal wakes the sender.
func (h *hints) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// send is the goroutine that sends: the first hint at once, and those of the next milliseconds together.
func (h *hints) send(ctx context.Context) {
	ticker := time.NewTicker(presencePause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-ticker.C:
			h.mu.Lock()
			h.dueSelf = len(h.waiting) > 0
			h.mu.Unlock()
		}
		if notes := h.take(); len(notes) > 0 {
			h.flush(ctx, notes)
			pause(ctx, hintPause)
		}
	}
}

// take returns the notifications that are due.
func (h *hints) take() (notes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dueSelf {
		h.dueSelf = false
		notes = append(notes, presenceNote+h.self)
	}
	if len(h.pending) == 0 {
		return notes
	}
	var all strings.Builder
	for hash := range h.pending {
		all.WriteString(encodeHash(hash))
	}
	clear(h.pending)
	for part := range slices.Chunk([]byte(all.String()), hintsPerNote*hintSize) {
		notes = append(notes, hintNote+string(part))
	}
	return notes
}

// flush sends notifications. Those that cannot be sent are lost.
func (h *hints) flush(ctx context.Context, notes []string) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	if _, err := h.pool.Exec(ctx, flushSQL, h.channel, notes); err != nil {
		h.logger.Debug("pgstore: hints were not sent", "error", err)
	}
}

// announce has the commit of tx wake those who wait for a key, here as well. It is a round trip, so it is left out when
// nobody waits for anything.
func (h *hints) announce(ctx context.Context, tx pgx.Tx, scope, key string) error {
	if !h.wanted() {
		return nil
	}
	_, err := tx.Exec(ctx, announceSQL, h.channel, hintNote+encodeHash(hashKey(scope, key)))
	return err
}
