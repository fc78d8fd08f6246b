package idemtest

import (
	"fmt"
	"math/bits"
	"strings"
)

// A Feature is something that stores may do without and still keep the contract in the rest, or that a
// [Maker] cannot set from outside. Features are combined with |.
type Feature uint

// What a [Maker] may declare as unsupported.
const (
	TakeOver             Feature = 1 << iota // the policy of that name
	Hold                                     // the policy of that name
	Inspector                                // the store is an idem.Inspector
	Closer                                   // the store is an io.Closer
	DefaultLease                             // Config.Lease
	DefaultTTL                               // Config.TTL
	MaxKeyBytes                              // Config.MaxKeyBytes, for keys and scopes
	MaxResponseBytes                         // Config.MaxResponseBytes
	MaxRecords                               // Config.MaxRecords
	MaxWaiters                               // Config.MaxWaiters
	MaxWaitersPerKey                         // Config.MaxWaitersPerKey
	FirstComeFirstServed                     // those who wait become owners in the order in which they came
)

// String returns the names of the features, joined by "|".
func (f Feature) String() string {
	names := [...]string{"TakeOver", "Hold", "Inspector", "Closer", "DefaultLease", "DefaultTTL", "MaxKeyBytes",
		"MaxResponseBytes", "MaxRecords", "MaxWaiters", "MaxWaitersPerKey", "FirstComeFirstServed"}
	var parts []string
	for ; f != 0; f &= f - 1 {
		if i := bits.TrailingZeros(uint(f)); i < len(names) {
			parts = append(parts, names[i])
		} else {
			parts = append(parts, fmt.Sprintf("Feature(1<<%d)", i))
		}
	}
	return strings.Join(parts, "|")
}
