package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// maxUndoing bounds the goroutines that give up claims at a time: while the server cannot be reached, every Begin would
	// leave one behind. What is dropped over it is free when its lease has run out.
	maxUndoing = 256

	// undoTime bounds such a goroutine, and undoTryTime each of its statements, since a connection may swallow them.
	undoTime    = 2 * finishTimeout
	undoTryTime = 2 * time.Second
)

// undoPauses are those before each try. Together they are longer than a server takes to start again.
var undoPauses = [...]time.Duration{
	0, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
}

// errNotGranted is what a try to undo ends with that found no claim. There may be one yet: the server goes on with a
// statement whose connection broke, and that may wait for another transaction.
var errNotGranted = errors.New("pgstore: no claim with this nonce")

// inDoubt reports whether a statement of Begin that ended with err may have made a claim all the same. One that the server
// has refused has made none, and neither has one that was not sent, or that others were ahead of.
func inDoubt(err error) bool {
	return isBroken(err) && !pgconn.SafeToRetry(err) && !errors.Is(err, errBusy)
}

// undo gives up, in the background, the claim that a Begin was granted which failed since it did not hear of it. The
// Begin must have ended: if it claimed the key again, its claim would be given up. It returns false, and does nothing,
// when too many others are at it or the store is closed.
func (s *Store) undo(ctx context.Context, scope, key string, nonce int64) bool {
	select {
	case s.undoing <- struct{}{}:
	default:
		return false
	}
	started := s.spawn(func() {
		defer func() { <-s.undoing }()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		s.undoNow(bounded, scope, key, nonce)
	})
	if !started {
		<-s.undoing
	}
	return started
}

// undoNow tries until it has given up the claim, or ctx ends. Usually the first try does.
func (s *Store) undoNow(ctx context.Context, scope, key string, nonce int64) {
	var err error
	for _, d := range undoPauses {
		if d > 0 && !pause(ctx, d) {
			break
		}
		if err = s.tryUndo(ctx, scope, key, nonce); err == nil {
			s.changed(scope, key)
			return
		}
	}
	if !errors.Is(err, errNotGranted) {
		s.cfg.Logger.Warn("pgstore: the claim of a Begin that failed may stay until its lease runs out", "error", err)
	}
}

func (s *Store) tryUndo(ctx context.Context, scope, key string, nonce int64) error {
	ctx, cancel := context.WithTimeout(ctx, undoTryTime)
	defer cancel()
	tag, err := s.pool.Exec(ctx, s.queries.undo, escape(scope), escape(key), nonce)
	if err == nil && tag.RowsAffected() == 0 {
		return errNotGranted
	}
	return err
}
