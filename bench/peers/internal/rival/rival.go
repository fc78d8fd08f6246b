// Package rival makes other libraries do the work of an idempotency store, one adapter file for each, so that
// they can be measured beside idem. Every adapter uses its library as well as the library allows: where that
// has no atomic claim, the note says what was put around it.
package rival

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// BodyBytes is the size of the responses in all workloads. Libraries that need to know may size for it.
const BodyBytes = 200

// lease is how long a claim lasts, in all stores that have a notion of it.
const lease = 30 * time.Second

// A State is the answer to Begin.
type State uint8

// Fresh: the caller has the claim. InProgress: another one has it. Replay: the response is there.
const (
	Fresh State = iota
	InProgress
	Replay
)

// String returns the state's name.
func (s State) String() string { return [...]string{"fresh", "in progress", "replay"}[s] }

// A Store is the work that is measured. Its methods may be called by any number of goroutines. Strings and bytes
// that it is given are the caller's, who changes them after the call: what must stay is copied.
type Store interface {
	// Begin claims key, or says who has it. The response of a Replay is appended to buf[:0].
	Begin(key string, buf []byte) (State, []byte, Claim)

	// Complete records body as the response of the key that c claimed.
	Complete(key string, c Claim, body []byte, ttl time.Duration)

	// Close ends the store's goroutines.
	Close()
}

// A Waiter is a Store with which duplicates can wait for the owner to complete.
type Waiter interface {
	Store

	// Wait blocks until the response of key, which is in progress or done, is there and appends it to buf[:0].
	Wait(key string, buf []byte) []byte

	// Waiting returns how many calls of Wait are blocked, or are about to be.
	Waiting() int
}

// A Claim is what Complete needs to know of Begin.
type Claim struct {
	// Key is the store's own copy of the key, so that Complete need not make another.
	Key string

	// Idem is idem's own claim, which the others have nothing like.
	Idem idem.Claim
}

// Options are what a store is opened for.
type Options struct {
	Records int           // how many live records are to come; libraries of a fixed size are sized for them
	TTL     time.Duration // of nearly all of them
}

// An Expiry is how a library gives back the memory of records whose time is over. All adapters answer rightly
// that such a record is absent.
type Expiry uint8

// PerRecord: each record has a time of its own. PerStore: one time for all of a store. Never: the memory is kept
// until the same key comes again, or the record is overwritten because the store is full.
const (
	PerRecord Expiry = iota
	PerStore
	Never
)

// A Rival is one library and what a reader must know about it.
type Rival struct {
	Name   string // in flags, tables and pictures
	Module string // whose version is reported; empty for the standard library
	Claim  string // how Begin is made atomic
	Expiry Expiry
	Lossy  bool // it may drop live records: an operation would run twice
	Blocks bool // a duplicate of a claimed key blocks in Begin: there is no InProgress
	Open   func(Options) (Store, error)
}

// All returns the rivals, idem first.
func All() []Rival {
	return []Rival{
		idemEngine, mutexMapRival, syncMapRival, xsyncRival, otterRival, goCacheRival, theineRival,
		ttlCacheRival, lruRival, bigCacheRival, freeCacheRival, fastCacheRival, ristrettoRival, fiberRival,
	}
}

// Select returns the rivals of a comma-separated list of names, idem first, as all ratios are to idem. An empty
// list means all.
func Select(names string) ([]Rival, error) {
	all := All()
	if names == "" {
		return all, nil
	}
	var known []string
	for _, r := range all {
		known = append(known, r.Name)
	}
	want := map[string]bool{all[0].Name: true}
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); !strings.Contains(" "+strings.Join(known, " ")+" ", " "+name+" ") {
			return nil, fmt.Errorf("unknown rival %q: choose from %s", name, strings.Join(known, ", "))
		}
		want[name] = true
	}
	var chosen []Rival
	for _, r := range all {
		if want[r.Name] {
			chosen = append(chosen, r)
		}
	}
	return chosen, nil
}

// Marks says in a few words what the contract asks and the library does not keep.
func (r Rival) Marks() string {
	var marks []string
	if r.Lossy {
		marks = append(marks, "may drop live records")
	}
	switch r.Expiry {
	case PerStore:
		marks = append(marks, "one TTL for all records")
	case Never:
		marks = append(marks, "never frees what expired")
	}
	if r.Blocks {
		marks = append(marks, "duplicates block, no ctx")
	}
	return strings.Join(marks, "; ")
}
