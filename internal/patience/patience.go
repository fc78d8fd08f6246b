// Package patience tries again what must not fail: to record that an operation ran. What is not recorded runs again when
// the lease of its claim has run out.
package patience

import (
	"math/rand/v2"
	"time"
)

const (
	// A call is tried again for as long as a lease lasts, within these bounds: the claim of an owner who can't reach
	// the store lasts no longer either.
	least = 10 * time.Second
	most  = 5 * time.Minute

	// The pauses between the tries double from the first of these to the last.
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Retry calls try until it returns nil or an error that is final, or the patience is at an end that began at start, and
// returns its last error. The first call comes after a pause, since one has just failed. A call that begins in time is
// waited for, however long it takes.
func Retry(start time.Time, lease time.Duration, isFinal func(error) bool, try func() error) (err error) {
	giveUp := start.Add(min(max(lease, least), most))
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		left := time.Until(giveUp)
		time.Sleep(min(left, pause/2+rand.N(pause/2))) // keeps callers apart that failed together
		if err = try(); err == nil || isFinal(err) || time.Until(giveUp) <= 0 {
			return err
		}
	}
}
