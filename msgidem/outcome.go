package msgidem

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// Causes for which the context of a [Func] ends, besides [idem.ErrClaimLost], and errors of an [Outcome].
var (
	// ErrStopped: the consumer was told to stop and [Config.DrainTimeout] is over.
	ErrStopped = errors.New("msgidem: consumer is stopping")

	// ErrStuck: from Run, when handlers did not return although their contexts had ended. Their goroutines
	// still run, and settle their messages when they do return.
	ErrStuck = errors.New("msgidem: did not stop in time")

	// ErrExited: the handler called [runtime.Goexit].
	ErrExited = errors.New("msgidem: handler ended its goroutine")

	// ErrBroker: the broker did not take an acknowledgement, a nak or a term. It will deliver the message
	// again; nothing runs twice for it.
	ErrBroker = errors.New("msgidem: broker failed")

	// ErrStore: the store failed, so that nothing was run, or what ran is not recorded.
	ErrStore = errors.New("msgidem: store failed")

	// ErrDeadLetter: the hook for dead letters failed, so that the message was given back.
	ErrDeadLetter = errors.New("msgidem: dead letter not accepted")

	// ErrAttempts: the message had all its attempts, or all of its [Config.MaxDeliveries].
	ErrAttempts = errors.New("msgidem: attempts used up")
)

// Result is what became of a delivery.
type Result uint8

const (
	// Done: the handler ran, that is recorded, and the broker has the acknowledgement.
	Done Result = iota + 1

	// Skipped: the message was settled before, by another delivery; acknowledged without running anything, or
	// terminated if what is recorded is a failure. Only a last delivery may have run, in vain: it lost its claim,
	// and the message to whoever settled it.
	Skipped

	// Retried: the message is to be delivered again after [Outcome.Delay]. If the broker can nak it was
	// told so; if not, the caller of Handle has to handle the same delivery again.
	Retried

	// DeadLettered: the message will never be handled; the hook has it and the broker was told.
	DeadLettered

	// Left: the broker was told nothing, or did not take it. It delivers the message again when it
	// misses the acknowledgement. If it does not, because [Message.AckWait] is zero, and can't nak either, the
	// caller of Handle has to handle the same delivery again.
	Left
)

// String returns the result's name in lower case, "dead-lettered" for instance.
func (r Result) String() string {
	switch r {
	case Done:
		return "done"
	case Skipped:
		return "skipped"
	case Retried:
		return "retried"
	case DeadLettered:
		return "dead-lettered"
	case Left:
		return "left"
	default:
		return fmt.Sprintf("Result(%d)", uint8(r))
	}
}

// An Outcome is what [Handler.Handle] did with a delivery.
type Outcome struct {
	// Result is what became of it.
	Result Result

	// State is what the store answered; zero when it did not answer.
	State idem.State

	// Ran tells whether the handler was called.
	Ran bool

	// Attempt is the number of this attempt: what the broker counts, less the deliveries to this process that
	// did not get as far as to the handler, because the message was in progress or the store was down. Such
	// deliveries to other processes are counted, as are those that waited in a process until it was stopped.
	Attempt int

	// Delay is how long the message shall wait, when Result is Retried.
	Delay time.Duration

	// Err is what stood in the way. It is nil when Result is Done, and when it is Skipped unless what is recorded is
	// a failure: then it is that, an [*idem.FailedError]. Otherwise it matches the handler's error,
	// a [*PanicError] or one of ErrExited, ErrBroker, ErrStore, ErrDeadLetter, ErrAttempts,
	// [idem.ErrClaimLost], [idem.ErrMismatch], [idem.ErrInProgress], [idem.ErrUnknown], [idem.ErrKey].
	Err error
}

// A DeadLetter is a message that will never be handled, as far as its consumer knows. One that was made of the last
// delivery, see [Message.Last], says less: that the broker has given the message up before it was known to be done. It
// is not recorded as a failure, so that the message runs when it is published again. It may be done all the same: by a
// handler whose success could not be recorded, or by another consumer that still had it in hand.
type DeadLetter struct {
	// Message is the message as it was delivered, with its payload.
	Message Message

	// Reason is one line for people. Messages of the handler's errors are part of it.
	Reason string

	// Err matches what the reason is, see [Outcome.Err].
	Err error

	// Attempts is how often the handler failed, as far as that is known.
	Attempts int
}

// A PanicError is a panic in a [Func], or in a function of a [Config].
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value of the panic in one line, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("msgidem: panic: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
