// Package shrink sends dead letters that may be too large: a message that was itself as large as it may be has no room for
// the headers of a letter.
package shrink

import "strings"

// A Step is how much of a letter is sent: less each time that the one before was too large.
type Step int

// The steps, in the order in which they are taken.
const (
	Whole      Step = iota // with the headers of the message and all of the reason
	Short                  // with shortReason of the reason
	OwnHeaders             // and without the headers of the message
	Bare                   // what was the message, and nothing else
)

// shortReason is what is left of a reason in bytes, where room is short.
const shortReason = 64

// Send calls send step by step, until it succeeds or fails for another reason than the size, and returns its last error.
func Send(isTooLarge func(error) bool, send func(Step) error) error {
	for step := Whole; ; step++ {
		if err := send(step); err == nil || step == Bare || !isTooLarge(err) {
			return err
		}
	}
}

// Reason returns what is left of a reason.
func (s Step) Reason(reason string) string {
	if s < Short || len(reason) <= shortReason {
		return reason
	}
	return strings.ToValidUTF8(reason[:shortReason], "")
}
