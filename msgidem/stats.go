package msgidem

import "sync/atomic"

// Stats tells what a [Handler] has done. It is a snapshot: its parts were read one after the other while the
// handler went on.
type Stats struct {
	Running int // handlers that run now
	Waiting int // duplicates that wait now

	// Counted since New. Each delivery is in one of the five that follow it.
	Deliveries   uint64
	Done         uint64
	Skipped      uint64
	Retried      uint64
	DeadLettered uint64
	Left         uint64

	Runs       uint64 // calls of the handler
	Failures   uint64 // of them, those that did not return nil, panics and exits among them
	Panics     uint64 // of them, those that panicked or ended their goroutine
	InProgress uint64 // deliveries that were given back because their message was being handled
	Mismatched uint64 // deliveries whose payload was not that of their ID
	Unknown    uint64 // deliveries of messages that nobody knows the outcome of
	ClaimsLost uint64 // handlers that lost their claim before they could record that they ran

	StoreErrors  uint64 // calls of the store that failed
	BrokerErrors uint64 // calls of the delivery that failed
	HookErrors   uint64 // dead letters that were not accepted, and panics of functions of the Config
}

// counters are what Stats reads.
type counters struct {
	running, waiting                                        atomic.Int64
	deliveries                                              atomic.Uint64
	results                                                 [Left + 1]atomic.Uint64
	runs, failures, panics, inProgress, mismatched, unknown atomic.Uint64
	claimsLost, storeErrors, brokerErrors, hookErrors       atomic.Uint64
}

// Stats returns a snapshot.
func (h *Handler) Stats() Stats {
	c := &h.counters
	return Stats{
		Running:      int(c.running.Load()),
		Waiting:      int(c.waiting.Load()),
		Deliveries:   c.deliveries.Load(),
		Done:         c.results[Done].Load(),
		Skipped:      c.results[Skipped].Load(),
		Retried:      c.results[Retried].Load(),
		DeadLettered: c.results[DeadLettered].Load(),
		Left:         c.results[Left].Load(),
		Runs:         c.runs.Load(),
		Failures:     c.failures.Load(),
		Panics:       c.panics.Load(),
		InProgress:   c.inProgress.Load(),
		Mismatched:   c.mismatched.Load(),
		Unknown:      c.unknown.Load(),
		ClaimsLost:   c.claimsLost.Load(),
		StoreErrors:  c.storeErrors.Load(),
		BrokerErrors: c.brokerErrors.Load(),
		HookErrors:   c.hookErrors.Load(),
	}
}
