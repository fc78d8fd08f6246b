// Package verify_test checks what needs heavier tools than the root module may require: goroutine leaks
// over all of its tests, linearizability, the contract as a state machine under exact time, and how the
// HTTP middleware gets on with other people's packages.
package verify_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine outlives the tests: every engine ends its own in Close, and every
// caller that waits comes back.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
