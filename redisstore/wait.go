package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// hints is where a store hears that keys have changed for which its callers wait: a channel of its own, so that
// other processes cost it nothing.
type hints struct {
	channel string // its name ends with 16 bytes that no other store has
	start   sync.Once
}

func (h *hints) init(prefix string) { h.channel = prefix + ":w:" + rand.Text()[:16] }

// wait is ask for callers that block while another one holds the key. All of one process that wait for a key
// share one look, which also enters the instance into the record: there is no moment between in which a change
// would go unheard.
func (s *Store) wait(ctx context.Context, req *idem.Request, key string, lease span) (string, error) {
	k := waitroom.Key{Scope: req.Scope, Key: req.Key, Fingerprint: req.Fingerprint}
	text, err := s.room.Wait(ctx, k, func(ctx context.Context, _ int) waitroom.Look[string] {
		text, err := s.ask(ctx, req, key, lease)
		return s.judge(text, err)
	})
	switch {
	case errors.Is(err, waitroom.ErrClosed):
		return "", idem.ErrClosed
	case errors.Is(err, waitroom.ErrCrowded):
		now := *req
		now.Wait = false
		return s.ask(ctx, &now, key, lease)
	}
	return text, err
}

// judge says whom an answer of begin is for.
func (s *Store) judge(text string, err error) waitroom.Look[string] {
	look := waitroom.Look[string]{Result: text, Err: err, Verdict: waitroom.Everyones}
	switch {
	case err != nil:
	case text[0] == 'c':
		look.Verdict = waitroom.Mine
	case text[0] == 'P' && len(text) == 9:
		// Not before: most callers that would wait find that they need not.
		s.hints.start.Do(func() { s.crew.run(s.listen) })
		look.Verdict, look.After = waitroom.Again, microsAt(text, 1)
	}
	return look
}

const (
	firstPause = 50 * time.Millisecond // before the store subscribes again; doubles
	lastPause  = 2 * time.Second
)

// listen keeps the store subscribed until it is closed. Whatever is not heard, because the store was not
// subscribed yet or no more, is made good by looking at all keys as soon as it is.
func (s *Store) listen(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		var subscribed atomic.Bool // an adapter may say so in a goroutine of its own
		ready := func() {
			subscribed.Store(true)
			s.room.HintAll()
		}
		err := s.adapter.Subscribe(ctx, s.hints.channel, ready, s.hear)
		if ctx.Err() != nil {
			return
		}
		if subscribed.Load() {
			pause = firstPause
		}
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "redisstore: subscription lost; until it is back, callers that wait look once in a while",
			slog.Any("error", err), slog.Duration("retry", pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// hear passes a hint on to those who wait for the key.
func (s *Store) hear(name string) {
	if scope, key, ok := s.splitKey(name); ok {
		s.room.Hint(scope, key)
	}
}
