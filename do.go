package idem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/heed"
	"github.com/seed-5bb5eb37/idem/internal/patience"
)

// ErrNotRecorded comes from [Do] and [Call], together with the result and the store's error, when the
// operation ran here but the store did not take its result. The key was not released: duplicates are told
// that it is in progress until the lease ends, and then what the store's [LeasePolicy] says. If the error is [ErrClaimLost]
// as well, another caller has the key or has completed it, and what this run did has to be undone or reconciled.
var ErrNotRecorded = errors.New("idem: operation ran, but its result was not recorded")

// callTimeout bounds one call that settles a claim. Nothing else ends such a call, since it is
// detached from the caller's context.
const callTimeout = 5 * time.Second

// An InProgressError says how long another caller's claim lasts. It matches [ErrInProgress].
type InProgressError struct {
	// Remaining is what is left of the owner's lease; the owner may extend it.
	Remaining time.Duration
}

// Error returns the text of ErrInProgress and the time left.
func (e *InProgressError) Error() string {
	return fmt.Sprintf("%v: lease ends in %v", ErrInProgress, e.Remaining)
}

// Unwrap returns ErrInProgress.
func (e *InProgressError) Unwrap() error { return ErrInProgress }

// A FailedError is an operation's permanent failure, see [Permanent]. The owner and every replay get
// the same message.
type FailedError struct {
	// Response is the record of the failure: Failed is set, and Body is the message. It shares no
	// memory with [Request.Buf].
	Response Response

	cause error // what the function returned; nil on a replay
}

// Error returns the message of the error that was given to Permanent, if it was kept.
func (e *FailedError) Error() string {
	if len(e.Response.Body) == 0 {
		return "idem: operation failed for good, its message was not kept"
	}
	return string(e.Response.Body)
}

// Unwrap returns the error that the function returned to the owner, and nil on a replay.
func (e *FailedError) Unwrap() error { return e.cause }

// A permanentError is the mark that Permanent leaves. It has the text of the error that it wraps, so that
// owner and duplicates read the same.
type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// Permanent marks err, which an operation returns from [Do] or [Call], as a result: trying again would
// end the same way (a declined card, not a broken line). It is recorded, and the owner and all
// duplicates get a [*FailedError] with its message. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err is marked by [Permanent]. It looks in err's whole tree, but not below a
// [*FailedError]: the failure of an operation that a function itself ran through [Do] says nothing about the
// function's own, whether it was replayed or not.
func IsPermanent(err error) bool {
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself, to stop where errors.As would not
	case *permanentError:
		return true
	case *FailedError:
		return false
	case interface{ Unwrap() error }:
		return IsPermanent(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), IsPermanent)
	default:
		return false
	}
}

// lookTimeout bounds Completed: who has lost a claim must not wait long to be told.
const lookTimeout = time.Second

// Completed reports whether c's operation itself has recorded its response, in the transaction of its effect for instance.
// Then Extend says [ErrClaimLost], and nothing is wrong: for others that run functions in their way. A store that is no
// [Inspector], or does not answer within a second, gives false. The end of ctx does not matter.
func Completed(ctx context.Context, store Store, c Claim) bool {
	inspector, ok := store.(Inspector)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	done, err := heed.Call(ctx, func(ctx context.Context) (done bool, err error) {
		defer func() {
			if v := recover(); v != nil { // nobody else could, in a timer's goroutine
				err = fmt.Errorf("panic in Lookup: %v", v)
			}
		}()
		rec, found, err := inspector.Lookup(ctx, c.Scope, c.Key)
		return found && rec.State == Replay && rec.Token == c.Token, err
	})
	return err == nil && done
}

// Do runs fn once per scope and key, and gives every duplicate of req the response that was recorded. It
// panics when store or fn is nil. Its errors, for [errors.Is] and [errors.As]:
//
//   - nil: the response is fn's own, or the recorded one. One that was too large to keep comes to its owner
//     in full, with Truncated set, and to duplicates as what is left of it, with [ErrTruncated].
//   - [*FailedError]: fn returned an error marked by [Permanent], or a Failed response; now or earlier.
//   - [ErrInProgress] (an [*InProgressError]), [ErrMismatch], [ErrUnknown]: see there. Nothing was run.
//   - [ErrNotRecorded]: fn ran, its response comes with the error, but the store did not take it.
//   - fn's own error, with fn's response: the key was released, so the next caller runs the operation. If
//     that failed, the store's error is joined to it, and the key is free when the lease has run out.
//   - any other error is Begin's; nothing was run.
//
// While fn runs, the lease is extended every third of it. The context of fn is ctx, and ends also when the
// claim is lost: [context.Cause] is then [ErrClaimLost], and another caller may be at work. An fn that has completed the
// claim itself, in the transaction of its effect for instance, has not lost it, if store is an [Inspector]. The end of ctx
// itself releases nothing: the key stays claimed until fn returns, and a success is recorded although ctx
// is done. A panic or [runtime.Goexit] in fn releases the key and goes on. An fn that asks for its own key gets
// [ErrInProgress], and with [Request.Wait] waits for itself until its ctx ends.
//
// Once fn has succeeded Do never releases the key. A store that fails to take the response is asked again
// for as long as a lease lasts, but for ten seconds at least and five minutes at most; Do returns then.
func Do(ctx context.Context, store Store, req Request, fn func(context.Context, Claim) (Response, error)) (Response, error) {
	if store == nil || fn == nil {
		// At once, and not only when a key happens to be fresh.
		panic("idem: Do with a nil store or function")
	}
	out, err := store.Begin(ctx, req)
	if err != nil {
		return Response{}, err
	}
	switch out.State {
	case Fresh:
		return run(ctx, store, req.Lease, out, fn)
	case Replay:
		return out.Response, replayError(out.Response)
	case InProgress:
		return Response{}, &InProgressError{Remaining: out.Remaining}
	case Mismatch:
		return Response{}, ErrMismatch
	case Unknown:
		return Response{}, ErrUnknown
	default:
		return Response{}, fmt.Errorf("idem: store answered Begin with %v", out.State)
	}
}

// Call is [Do] for a function that returns a Go value, which is recorded as JSON. The owner gets the value
// of fn itself, duplicates what JSON keeps of it: no unexported fields, and only valid UTF-8. A value that
// JSON can't encode is returned to the owner with [ErrNotRecorded]; that the operation ran is recorded, and
// duplicates get [ErrTruncated]. With any other error the value is zero.
func Call[T any](ctx context.Context, store Store, req Request, fn func(context.Context, Claim) (T, error)) (T, error) {
	if store == nil || fn == nil {
		panic("idem: Call with a nil store or function")
	}
	var value, zero T
	var ran bool
	var unfit error
	resp, err := Do(ctx, store, req, func(ctx context.Context, claim Claim) (resp Response, err error) {
		v, err := fn(ctx, claim)
		if err != nil {
			return Response{}, err
		}
		// From here on nothing may look like a failure of fn: it would release the key.
		value, ran = v, true
		encoded := false
		defer func() {
			if !encoded { // a MarshalJSON called runtime.Goexit, and nobody comes back to record anything
				_ = complete(context.WithoutCancel(ctx), store, claim, Response{Truncated: true}, req.Lease)
			}
		}()
		resp.Body, unfit = encode(&v) // by pointer: a MarshalJSON may be a method of that
		encoded = true
		resp.Truncated = unfit != nil
		return resp, nil
	})
	// What fn returned is not decoded again: its owner has it although it was cut or not recorded.
	switch {
	case ran && err == nil && unfit != nil:
		return value, fmt.Errorf("%w: %w", ErrNotRecorded, unfit)
	case ran:
		return value, err
	case err != nil:
		return zero, err
	}
	if err := json.Unmarshal(resp.Body, &value); err != nil {
		// Another version of the program, or Do, wrote it. The half that was decoded is no answer.
		return zero, fmt.Errorf("idem: recorded body is no %v: %w", reflect.TypeFor[T](), err)
	}
	return value, nil
}

// encode is json.Marshal, except that a panic in a MarshalJSON is an error too: the operation has run, and
// that panic must not be taken for one of the operation.
func encode(v any) (body []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("idem: panic while encoding %T: %v", v, p)
		}
	}()
	return json.Marshal(v)
}

// An operation is what Do runs.
type operation func(context.Context, Claim) (Response, error)

// run calls fn under the claim of out and settles the claim. It is not part of Do so that a replay pays
// for none of its closures (TestDoReplayAllocatesNothing).
func run(ctx context.Context, store Store, lease time.Duration, out Outcome, fn operation) (resp Response, err error) {
	detached := context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	beat := startHeartbeat(detached, store, lease, out, func() { cancel(ErrClaimLost) })
	ran := false // and ended with a result, be it a permanent failure
	defer func() {
		beat.Close() // before Abandon: an Extend that comes after it would claim the key again
		if !ran {
			// fn failed, panics or exits. Nothing is recovered, so what goes on goes on by itself.
			err = joined(err, abandon(detached, store, out.Claim))
		}
		cancel(nil)
	}()

	resp, err = fn(ctx, out.Claim)
	if err != nil && !IsPermanent(err) {
		return resp, err
	}
	ran = true
	if err != nil {
		resp.Failed, resp.Body = true, message(err)
	}
	return settle(detached, store, out, resp, err)
}

// message is err's text; none when that can't be had: the operation has ended for good, and must not run again for it.
func message(err error) (text []byte) {
	defer func() { _ = recover() }()
	return []byte(err.Error())
}

// settle records what fn returned, and returns it to the owner with the errors that go with it: the failure
// itself, if resp is one, and that it was not recorded, if so. cause is nil or a permanent error.
func settle(ctx context.Context, store Store, out Outcome, resp Response, cause error) (Response, error) {
	record, unfit := resp, checkFit(resp)
	if unfit != nil {
		// To try is no use, and to release the key would run fn again: record only that it ran.
		record = Response{Failed: resp.Failed, Truncated: true}
	}
	err := complete(ctx, store, out.Claim, record, out.Remaining)
	if errors.Is(err, ErrTruncated) {
		// Recorded as far as can be; to the owner, who has it all, that is no failure.
		resp.Truncated, err = true, nil
	}
	if err == nil {
		err = unfit
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	if resp.Failed {
		err = joined(failure(resp, cause), err)
	}
	return resp, err
}

// complete records resp. A store that fails is tried again, since a key that is not recorded is one that
// somebody runs again when the lease has run out; each try is safe, since Complete is idempotent.
func complete(ctx context.Context, store Store, c Claim, resp Response, lease time.Duration) error {
	start := time.Now()
	err := completeOnce(ctx, store, c, resp)
	if err == nil || isFinal(err) {
		return err
	}
	return patience.Retry(start, lease, isFinal, func() error { return completeOnce(ctx, store, c, resp) })
}

// completeOnce is one try, bounded, so that a store that hangs is tried again too.
func completeOnce(ctx context.Context, store Store, c Claim, resp Response) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return store.Complete(ctx, c, resp)
}

// isFinal reports whether another Complete would end with the same err. An error that this package does not
// know may pass, so it is not final.
func isFinal(err error) bool {
	return errors.Is(err, ErrTruncated) || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrClosed) || errors.Is(err, ErrKey)
}

// abandon releases the key. One try will do: at worst the key is free when the lease has run out.
func abandon(ctx context.Context, store Store, c Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := store.Abandon(ctx, c); err != nil {
		return fmt.Errorf("idem: key not released: %w", err)
	}
	return nil
}

// checkFit returns an error for a response that no store takes. Without it such a response would be tried
// until the patience ends, and then its operation be run again when the lease has run out.
func checkFit(resp Response) error {
	switch {
	case resp.TTL < 0:
		return fmt.Errorf("idem: Response.TTL is %v, want zero or more", resp.TTL)
	case resp.Status < math.MinInt32 || resp.Status > math.MaxInt32:
		return fmt.Errorf("idem: Response.Status is %d, want a value of 32 bits", resp.Status)
	default:
		return nil
	}
}

// replayError returns the error that goes with a recorded response. A failure comes first: that its message
// was cut does not make it a success.
func replayError(resp Response) error {
	switch {
	case resp.Failed:
		return failure(resp, nil)
	case resp.Truncated:
		return ErrTruncated
	default:
		return nil
	}
}

// failure returns resp as an error. It copies the bytes: an error may outlive the buffer of the request.
func failure(resp Response, cause error) error {
	resp.Header, resp.Body = bytes.Clone(resp.Header), bytes.Clone(resp.Body)
	return &FailedError{Response: resp, cause: cause}
}

// joined is errors.Join, except that it leaves a lone error as it is: in the common case the owner gets the
// very error that its function returned.
func joined(err, other error) error {
	switch {
	case err == nil:
		return other
	case other == nil:
		return err
	default:
		return errors.Join(err, other)
	}
}
