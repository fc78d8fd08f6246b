package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/heed"
)

// settle runs an action of an owner, who may have left already.
func (s *Store) settle(ctx context.Context, a *action, key string, args ...string) (string, error) {
	ctx, cancel := s.ends.of(ctx)
	defer cancel()
	text, err := s.call(ctx, a, key, args...)
	if err != nil && err == context.Cause(ctx) { //nolint:errorlint // it is that very error, of which nobody knows yet what it is about
		err = fmt.Errorf("redisstore: %s: %w", a.name, err)
	}
	return text, err
}

// call has the server run an action, and with MinReplicas its replicas hear of it.
func (s *Store) call(ctx context.Context, a *action, key string, args ...string) (text string, err error) {
	if s.cfg.MinReplicas == 0 || a == lookup {
		text, err = s.runAgain(ctx, a, key, args)
	} else {
		text, err = s.replicate(ctx, a, key, args)
	}
	switch {
	case err == nil:
		return text, nil
	case ended(ctx, err):
		return "", context.Cause(ctx)
	default:
		return "", fmt.Errorf("redisstore: %s: %w", a.name, err)
	}
}

// runAgain runs an action once more when its connection broke, which some clients do by themselves. Every script may be
// carried out twice: the second time it finds its own doing.
func (s *Store) runAgain(ctx context.Context, a *action, key string, args []string) (text string, err error) {
	for range 3 { // the next connection may have been one that broke as well, idle in a pool
		text, err = run(ctx, s.adapter, a, key, args...)
		if err == nil || !isBroken(err) || ctx.Err() != nil {
			break
		}
	}
	return text, err
}

// isBroken reports whether err is that of a connection that was there and is no more. A server that cannot be reached is
// another matter: that is an error at once.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// ended reports whether a call failed because ctx ended. A connection that was given the deadline of ctx may notice a
// moment before ctx does that it has passed.
func ended(ctx context.Context, err error) bool {
	if end, ok := ctx.Deadline(); ok && errors.Is(err, os.ErrDeadlineExceeded) && time.Until(end) < time.Millisecond {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// replicate tries twice, because on a single connection nobody else makes good for its loss.
func (s *Store) replicate(ctx context.Context, a *action, key string, args []string) (text string, err error) {
	for range 2 {
		text, err = s.replicateOnce(ctx, a, key, args)
		if err == nil || errors.Is(err, ErrReplicas) || heed.IsOver(ctx) {
			break
		}
	}
	return text, err
}

// replicateOnce runs an action on one connection and has the server wait there for its replicas, because WAIT is about
// what its own connection wrote. Clients may connect first, and not heed ctx meanwhile, nor on the connection.
func (s *Store) replicateOnce(ctx context.Context, a *action, key string, args []string) (string, error) {
	return heed.Call(ctx, func(ctx context.Context) (text string, err error) {
		err = s.adapter.Pinned(ctx, key, func(c Conn) error {
			if ctx.Err() != nil { // nobody waits any more, and the claim may have been given up
				return context.Cause(ctx)
			}
			if text, err = run(ctx, c, a, key, args...); err != nil || text != "K" && text[0] != 'c' {
				return err
			}
			return s.waitForReplicas(ctx, c)
		})
		return text, err
	})
}

// waitForReplicas has the server wait for what c wrote to reach the replicas.
func (s *Store) waitForReplicas(ctx context.Context, c Conn) error {
	timeout := s.cfg.ReplicaTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	timeout = max(timeout, time.Millisecond) // servers count in ms, and take zero for ever
	n, err := c.Wait(ctx, s.cfg.MinReplicas, timeout)
	if err == nil && n < s.cfg.MinReplicas {
		err = fmt.Errorf("%w: %d of %d have it after %v", ErrReplicas, n, s.cfg.MinReplicas, timeout)
	}
	return err
}

// undo gives up the claim of a Begin that failed: it may have been granted, or will be when the server comes to it, as
// a client that is told to hurry leaves its command on the way. If it is never found it was not granted, or is free when
// its lease has run out.
func (s *Store) undo(ctx context.Context, key string, nonce uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*settleTimeout)
	started := s.crew.tryRun(func(closing context.Context) {
		defer cancel()
		defer context.AfterFunc(closing, cancel)() // or the store would keep ctx, and what is in it, until it is closed
		for _, pause := range [...]time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			text, err := run(ctx, s.adapter, abandon, key, s.gone.abandon('n', nonce))
			if err == nil && text == "K" {
				return
			}
		}
	})
	if !started {
		cancel()
	}
}
