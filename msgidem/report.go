package msgidem

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// report logs what became of the delivery and tells the hook. IDs are logged at Debug only, but for a dead letter that nobody
// has: it must not be gone without a name.
func (j *job) report() {
	log := j.cfg.Logger
	if log.Enabled(j.parent, slog.LevelDebug) {
		log.DebugContext(j.parent, "msgidem: delivery", "id", j.m.ID, "scope", j.m.Scope, "result", j.out.Result.String(),
			"state", j.out.State.String(), "attempt", j.out.Attempt, "delay", j.out.Delay, "error", j.out.Err)
	}
	switch {
	case j.out.Result == DeadLettered && j.cfg.DeadLetter == nil:
		log.WarnContext(j.parent, "msgidem: message will never be handled, and no hook takes it", "id", j.m.ID, "scope", j.m.Scope,
			"attempt", j.out.Attempt, "error", j.out.Err)
	case j.out.Result == DeadLettered:
		log.WarnContext(j.parent, "msgidem: message will never be handled", "scope", j.m.Scope, "attempt", j.out.Attempt, "error", j.out.Err)
	case j.out.Result == Left:
		log.WarnContext(j.parent, "msgidem: message left to the broker", "scope", j.m.Scope, "attempt", j.out.Attempt, "error", j.out.Err)
	case j.out.Result == Retried && errors.Is(j.out.Err, ErrStore):
		log.WarnContext(j.parent, "msgidem: store failed; message comes again", "scope", j.m.Scope, "attempt", j.out.Attempt,
			"delay", j.out.Delay, "error", j.out.Err)
	case j.out.Result == Retried && (j.out.Ran || j.out.State == 0):
		log.InfoContext(j.parent, "msgidem: message comes again", "scope", j.m.Scope, "attempt", j.out.Attempt,
			"delay", j.out.Delay, "error", j.out.Err)
	}
	if j.cfg.OnOutcome != nil {
		j.tell()
	}
}

// tell calls the hook.
func (j *job) tell() {
	defer j.guard("outcome")
	j.cfg.OnOutcome(j.parent, j.m, j.out)
}

// guard is deferred around what must not end the consumer if it panics.
func (j *job) guard(what string) {
	if v := recover(); v != nil { //nolint:revive // it is the deferred function
		j.counters.hookErrors.Add(1)
		_ = j.panicked(what, v)
	}
}

// panicked makes an error of a panic and reports it. It must be called while the stack is still there.
func (j *job) panicked(what string, v any) error {
	err := &PanicError{Value: v, Stack: debug.Stack()}
	j.cfg.Logger.ErrorContext(j.parent, "msgidem: panic", "in", what, "scope", j.m.Scope, "panic", fmt.Sprint(v), "stack", string(err.Stack))
	return err
}
