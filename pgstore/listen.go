package pgstore

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
)

// listen is the goroutine that hears notifications. Its connection comes from the pool, so that it is made as the
// user wants it, and is the listener's from then on.
func (h *hints) listen(ctx context.Context) {
	listener := pgxlisten.Listener{
		ReconnectDelay: reconnectPause,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			h.present.Store(forever) // who cannot hear must suppose that somebody waits
			conn, err := h.pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return conn.Hijack(), nil
		},
		LogError: func(_ context.Context, err error) {
			if ctx.Err() == nil {
				h.logger.Warn("pgstore: no hints are heard until the connection is there again", "error", err)
			}
		},
	}
	listener.Handle(h.channel, h)
	_ = listener.Listen(ctx) // it ends with ctx
}

// HandleBacklog is called when listening has begun, anew or for the first time. What was sent until then is lost.
func (h *hints) HandleBacklog(context.Context, string, *pgx.Conn) error {
	// Whoever waits elsewhere says so within presenceLife.
	h.heard()
	h.mu.Lock()
	h.dueSelf = len(h.waiting) > 0
	h.mu.Unlock()
	h.signal()
	h.room.HintAll()
	return nil
}

// HandleNotification is called for each notification. One that makes no sense is from another version; it is passed
// over.
func (h *hints) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	if who, ok := strings.CutPrefix(n.Payload, presenceNote); ok && who != h.self {
		h.heard()
	}
	hashes, ok := strings.CutPrefix(n.Payload, hintNote)
	for ok && len(hashes) >= hintSize {
		if b, err := base64.RawURLEncoding.DecodeString(hashes[:hintSize]); err == nil && len(b) == 8 {
			h.hint(binary.LittleEndian.Uint64(b))
		}
		hashes = hashes[hintSize:]
	}
	return nil
}

// heard notes that somebody waits elsewhere.
func (h *hints) heard() { h.present.Store(int64(time.Since(h.start) + presenceLife)) }

// hint wakes those who wait here for a key with the hash.
func (h *hints) hint(hash uint64) {
	h.mu.Lock()
	var names []keyName
	for name := range h.waiting[hash] {
		names = append(names, name)
	}
	h.mu.Unlock()
	for _, name := range names {
		h.room.Hint(name.scope, name.key)
	}
}
