package msgidem

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/seed-5bb5eb37/idem"
)

// Warm records the messages of seq as done, before Run is called: for a store that forgets, the engine, when a
// table or a file knows what was handled before the process was restarted. It returns how many it recorded;
// those that the store knew already are not among them.
//
// Scope and ID are those that the broker will deliver. Payload has to be there as well, since a message with
// another one is a mismatch, unless Config.Fingerprint is [IDOnly] or another function that does without. Warm
// stops at the first error of seq, of the store or of ctx, and at the first message that can't be recorded;
// the error says which one in the order of seq.
func (h *Handler) Warm(ctx context.Context, seq iter.Seq2[Message, error]) (int, error) {
	if ctx == nil || seq == nil {
		return 0, errors.New("msgidem: nil context or sequence")
	}
	n, i := 0, 0
	for m, err := range seq {
		i++
		if err != nil {
			return n, fmt.Errorf("msgidem: message %d: %w", i, err)
		}
		fresh, err := h.warm(ctx, m)
		if err != nil {
			return n, fmt.Errorf("msgidem: message %d: %w", i, err)
		}
		if fresh {
			n++
		}
	}
	return n, nil
}

// warm records one message and tells whether the store did not know it.
func (h *Handler) warm(ctx context.Context, m Message) (bool, error) {
	if h.cfg.Fingerprint == nil && m.Payload == nil {
		return false, errors.New("no payload: give it, or set Config.Fingerprint to IDOnly")
	}
	j := &job{Handler: h, m: m, parent: ctx, stop: ctx}
	fp, err := j.fingerprint()
	if err != nil {
		return false, err
	}
	out, err := h.store.Begin(ctx, idem.Request{Scope: m.Scope, Key: m.ID, Fingerprint: fp, Lease: h.cfg.Lease})
	switch {
	case err != nil:
		return false, err
	case out.State == idem.Replay:
		return false, nil
	case out.State == idem.InProgress:
		return false, idem.ErrInProgress
	case out.State == idem.Mismatch:
		return false, idem.ErrMismatch
	case out.State == idem.Unknown:
		return false, idem.ErrUnknown
	}
	if err := h.store.Complete(ctx, out.Claim, idem.Response{TTL: h.cfg.TTL}); err != nil && !errors.Is(err, idem.ErrTruncated) {
		return false, err
	}
	return true, nil
}
