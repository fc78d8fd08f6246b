package watermillidem

import (
	"errors"
	"sync/atomic"

	"github.com/seed-5bb5eb37/idem"
)

// Stats tells what an [Once] has done since New. It is a snapshot: its parts were read one after the other.
type Stats struct {
	Runs       uint64 // calls of handlers that returned
	Failures   uint64 // of them, those that returned an error or were not recorded
	Replays    uint64 // deliveries of messages that were done, or had failed for good
	InProgress uint64 // deliveries that failed because their message was being handled
	Mismatched uint64 // deliveries whose payload was not that of their key
	Refused    uint64 // deliveries for which the store failed, or did not know the outcome
}

type counters struct {
	runs, failures, replays, inProgress, mismatched, refused atomic.Uint64
}

func (c *counters) count(ran bool, err error) {
	var failed *idem.FailedError
	switch {
	case ran:
		c.runs.Add(1)
		if err != nil {
			c.failures.Add(1)
		}
	case err == nil || errors.As(err, &failed) || errors.Is(err, idem.ErrTruncated):
		c.replays.Add(1)
	case errors.Is(err, idem.ErrInProgress):
		c.inProgress.Add(1)
	case errors.Is(err, idem.ErrMismatch):
		c.mismatched.Add(1)
	default:
		c.refused.Add(1)
	}
}

// Stats returns a snapshot.
func (o *Once) Stats() Stats {
	c := &o.counters
	return Stats{
		Runs: c.runs.Load(), Failures: c.failures.Load(), Replays: c.replays.Load(),
		InProgress: c.inProgress.Load(), Mismatched: c.mismatched.Load(), Refused: c.refused.Load(),
	}
}
