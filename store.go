package idem

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// The failures that a [Store] reports. Test for them with [errors.Is].
// What a caller has to expect in normal work is a [State], not an error.
var (
	// ErrClosed: the store was closed; from every method, and to every caller that waits.
	ErrClosed = errors.New("idem: store is closed")

	// ErrClaimLost: the claim is no longer the key's current one; from Complete, Abandon and
	// Extend, which then change nothing. Undo or fence off what the operation did.
	ErrClaimLost = errors.New("idem: claim lost")

	// ErrKey: the key or the scope has a length that the store does not take; from every method
	// that is given one. Nothing was written.
	ErrKey = errors.New("idem: bad key")

	// ErrFull: the store has no room for a new key; from Begin. Records that are there are still
	// replayed, and claims that were granted can still be completed.
	ErrFull = errors.New("idem: store is full")

	// ErrTruncated: the operation ran, but its response is larger than the store keeps; from
	// Complete and Resolve, which recorded the response without its body, and from [Do] on a replay of it.
	ErrTruncated = errors.New("idem: response not kept, only that the operation ran")

	// ErrNoClaim: no operation is in progress or unknown under the key; from Resolve.
	ErrNoClaim = errors.New("idem: no claim to resolve")
)

// The outcomes that [Do] and [Call] return as errors.
var (
	// ErrInProgress: another caller runs the operation. Try again when its lease has run out at
	// the latest: the error is an [*InProgressError].
	ErrInProgress = errors.New("idem: operation in progress")

	// ErrMismatch: the key was used for another request before. Trying again cannot help.
	ErrMismatch = errors.New("idem: key reused with another fingerprint")

	// ErrUnknown: the owner's lease ran out under the policy [Hold]; whether its operation took
	// effect is not known. Someone has to look and call [Inspector.Resolve] or Forget. (What httpidem holds because of
	// its status is recorded, so that only Forget ends it.)
	ErrUnknown = errors.New("idem: outcome of the operation is unknown")
)

// A Store keeps one record per scope and key: absent, in progress (a [Claim] with a lease) or done
// (a [Response] that is replayed until its TTL ends). All methods may be called by any number of
// goroutines. Package idemtest proves an implementation.
type Store interface {
	// Begin asks for the right to run the operation that req names. The answer is in
	// [Outcome.State]; an error means that nothing was claimed: a bad argument (ErrKey among
	// them), ErrFull, ErrClosed, [context.Cause] of a ctx that is done, or a failure of the store.
	Begin(ctx context.Context, req Request) (Outcome, error)

	// Complete records resp as the result of the claim's operation and wakes those who wait for it.
	// It succeeds while c is the key's current claim, even after its lease has run out, and also
	// when the record is gone and nobody else holds the key. Completing c again changes nothing and
	// is no error. ErrClaimLost: somebody else claimed the key; ErrTruncated: see there.
	Complete(ctx context.Context, c Claim, resp Response) error

	// Abandon gives the claim up, so that the next caller is Fresh. On a claim that was completed,
	// on a key that is absent and on the zero Claim it does nothing and returns nil, so that
	// deferring it is always safe. ErrClaimLost: somebody else holds or completed the key.
	Abandon(ctx context.Context, c Claim) error

	// Extend moves the end of the claim's lease to lease from now; zero means the store's default.
	// It succeeds when Complete would, except that a completed claim is ErrClaimLost.
	Extend(ctx context.Context, c Claim, lease time.Duration) error
}

// An Inspector looks into a store and lets an operator step in. Every store of this module is one.
type Inspector interface {
	// Lookup returns the key's record without claiming it, and whether there is one.
	Lookup(ctx context.Context, scope, key string) (Record, bool, error)

	// Forget erases the key's record, or takes the claim from its owner, and tells whether there was
	// anything to forget. A waiter, if there is one, becomes the next owner. The former owner may
	// still Complete until somebody else claims the key.
	Forget(ctx context.Context, scope, key string) (bool, error)

	// Resolve records resp for a key that is in progress or unknown; its owner then finds its claim
	// lost. ErrNoClaim: the key is absent or done.
	Resolve(ctx context.Context, scope, key string, resp Response) error
}

// A Request names an operation and says how Begin should treat it.
type Request struct {
	// Scope is whom the key belongs to: a tenant, a principal, a consumer group. The same key in
	// two scopes is two keys. It may be empty.
	Scope string

	// Key is what the client sent: 1 byte up to the store's limit (255 by default), kept as it is.
	Key string

	// Fingerprint is a digest of the request, see [FingerprintOf]. The same key with another
	// fingerprint is a Mismatch. Zero is a fingerprint like any other.
	Fingerprint Fingerprint

	// Lease is how long the claim lasts unless it is extended. Zero means the store's default;
	// negative is an error.
	Lease time.Duration

	// Wait makes a duplicate block until the owner is done, or this caller becomes the owner, or
	// ctx ends. Without it a duplicate is answered InProgress at once.
	Wait bool

	// Buf, when it is not nil, is what the header and the body of a replay are appended to (at
	// Buf[:0]), so that a replay need not allocate. The response then shares its memory.
	Buf []byte
}

// An Outcome is Begin's answer.
type Outcome struct {
	// State says which of the other fields mean something.
	State State

	// Claim is the right to run the operation, when State is Fresh.
	Claim Claim

	// Response is the recorded result, when State is Replay. It belongs to the caller.
	Response Response

	// Remaining is the lease that was granted (Fresh) or what is left of the owner's (InProgress).
	// It is above zero then, and zero in the other states.
	Remaining time.Duration
}

// State is what Begin found.
type State uint8

const (
	// Fresh: the caller has the claim; it runs the operation and then calls Complete or Abandon.
	Fresh State = iota + 1

	// InProgress: another caller has the claim, and its lease runs.
	InProgress

	// Replay: the operation is done; this is its response.
	Replay

	// Mismatch: the key is taken by a request with another fingerprint.
	Mismatch

	// Unknown: the owner's lease ran out under the policy Hold; see [ErrUnknown].
	Unknown
)

// String returns the state's name in lower case, "fresh" for instance.
func (s State) String() string {
	switch s {
	case Fresh:
		return "fresh"
	case InProgress:
		return "in progress"
	case Replay:
		return "replay"
	case Mismatch:
		return "mismatch"
	case Unknown:
		return "unknown"
	default:
		return fmt.Sprintf("State(%d)", uint8(s))
	}
}

// A Claim is the right to run one operation. It is a plain value: it can be marshalled, and finished
// by another goroutine or, on a shared store, another process.
type Claim struct {
	Scope, Key string

	// Token grows with every claim that a store grants and is never used twice. A downstream system
	// that refuses a token below the highest it has seen shuts out an owner that lost its claim. (It
	// is what the literature on leases calls a fencing token.)
	Token uint64

	// Fingerprint is the request's, so that a late Complete can restore a record that is gone.
	Fingerprint Fingerprint

	// origin is the engine that granted the claim. It is lost when the claim is marshalled, and nil in
	// claims of other stores.
	origin *Engine
}

// MarshalJSON refuses a claim whose scope or key is no valid UTF-8. JSON would change it, and the claim then be completed
// under a key that nobody asks for. Other encodings, gob for instance, take any key.
func (c Claim) MarshalJSON() ([]byte, error) {
	if !utf8.ValidString(c.Scope) || !utf8.ValidString(c.Key) {
		return nil, fmt.Errorf("idem: claim on scope %q and key %q: JSON has room for valid UTF-8 only", c.Scope, c.Key)
	}
	type plain Claim
	return json.Marshal(plain(c))
}

// A Response is the recorded result of an operation.
type Response struct {
	// Status is an HTTP status or whatever the application means by it; it must fit into 32 bits.
	Status int

	// Header and Body are opaque to stores and come back byte for byte. The store copies them.
	Header, Body []byte

	// Failed marks a permanent failure; Body then says why. See [Permanent].
	Failed bool

	// Truncated marks an operation that ran and whose body was not kept.
	Truncated bool

	// TTL is how long the response is replayed. Zero means the store's default; negative is an
	// error. On a replay it is zero.
	TTL time.Duration

	// StoredAt is when the response was recorded, by the store's clock. The store sets it.
	StoredAt time.Time
}

// A Record is what [Inspector.Lookup] found.
type Record struct {
	Scope, Key string

	// State is InProgress, Replay or Unknown.
	State State

	Token       uint64
	Fingerprint Fingerprint

	// Since is when the claim was granted (InProgress, Unknown) or the response recorded (Replay).
	Since time.Time

	// Remaining is what is left of the lease (InProgress) or of the record's life (the others).
	Remaining time.Duration

	// Response is the recorded result, when State is Replay.
	Response Response
}

// A Fingerprint is a digest of a request.
type Fingerprint [16]byte

// FingerprintOf returns the first 16 bytes of the SHA-256 of parts, each preceded by its length, so
// that ("ab", "c") and ("a", "bc") differ.
func FingerprintOf(parts ...[]byte) Fingerprint {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write(p)
	}
	var sum [sha256.Size]byte
	return Fingerprint(h.Sum(sum[:0])[:len(Fingerprint{})])
}

// String returns the fingerprint as 32 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// MarshalText returns what String does.
func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText takes 32 hexadecimal digits.
func (f *Fingerprint) UnmarshalText(text []byte) error {
	var g Fingerprint
	if len(text) != hex.EncodedLen(len(g)) {
		return fmt.Errorf("idem: fingerprint of %d characters, want %d hexadecimal digits", len(text), hex.EncodedLen(len(g)))
	}
	if _, err := hex.Decode(g[:], text); err != nil {
		return fmt.Errorf("idem: fingerprint %q: %w", text, err)
	}
	*f = g
	return nil
}
