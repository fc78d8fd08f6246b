// Package verify_test checks what needs heavier tools than the root module may require: goroutine leaks
// over all of its tests, linearizability (of the stores on servers too, with clients in several processes), the
// contract as a state machine under exact time, and how the HTTP middleware gets on with other people's packages.
package verify_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine outlives the tests: every engine ends its own in Close, and every
// caller that waits comes back. In a process that was started to be one of several on a store it runs no tests.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(childEnv); ok {
		if err := beChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(run{m})
}
