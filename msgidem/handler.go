package msgidem

import (
	"context"
	"errors"
	"sync"

	"github.com/seed-5bb5eb37/idem"
)

// A Func handles one message. When it returns nil the message is done and never comes again. An error
// releases the message for another attempt, unless it is marked by [idem.Permanent]: that makes a dead
// letter at once. ctx ends when the claim is lost, with the cause [idem.ErrClaimLost]: another consumer may
// be at work. c.Token fences a downstream system; a handler that records the claim itself, in the
// transaction of its effect, returns nil as any other.
type Func func(ctx context.Context, m Message, c idem.Claim) error

// A Handler handles each message once. It must be made by [New]. Its methods may be called by any number of
// goroutines. It has no goroutine of its own: there is nothing to close.
type Handler struct {
	store    idem.Store
	fn       Func
	cfg      Config
	attempts attempts
	counters counters
	keepers  sync.Pool // of *keeper.Keeper
}

// New returns a handler that runs fn once per message, or an error that says what is wrong with cfg. The
// store is the caller's to close, after the last call of Handle and Run has returned.
func New(store idem.Store, fn Func, cfg Config) (*Handler, error) {
	switch {
	case store == nil:
		return nil, errors.New("msgidem: nil store")
	case fn == nil:
		return nil, errors.New("msgidem: nil handler function")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Handler{store: store, fn: fn, cfg: cfg}, nil
}
