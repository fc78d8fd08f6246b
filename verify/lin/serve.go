package lin

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// A greeting is what a process of a [Fleet] is told first. It answers with another one, empty, when its store is open.
type greeting struct {
	Origin int64 // the moment from which times count in all processes, by the wall clock in ns
	First  int   // of its clients
	Here   int   // how many it has
}

// A task is some workloads to record at the same time.
type task struct {
	Workloads []Workload
	At        time.Duration // when the clients start
}

// A report is what came of a task: this process's calls, by workload.
type report struct{ Histories [][]sent }

// A sent event travels between processes. An error can't, but what it says can.
type sent struct {
	Event Event
	Err   string
}

func pack(history []Event) []sent {
	packed := make([]sent, len(history))
	for i, e := range history {
		if e.Err != nil {
			packed[i].Err = plain(e.Err).Error()
		}
		e.Err, e.Outcome.Response.Body = nil, nil // the body was compared already
		packed[i].Event = e
	}
	return packed
}

func unpack(packed []sent) []Event {
	history := make([]Event, len(packed))
	for i, s := range packed {
		history[i] = s.Event
		if s.Err != "" {
			history[i].Err = errorOf(s.Err)
		}
	}
	return history
}

// errorOf returns the error that says text.
func errorOf(text string) error {
	for _, sentinel := range sentinels {
		if sentinel.Error() == text {
			return sentinel
		}
	}
	return errors.New(text)
}

// Serve is the work of a process that a [Fleet] has started, with its standard input and output: it runs its share of
// the clients on its own store, and returns nil when the fleet is closed.
func Serve(store Store, in io.Reader, out io.Writer) error {
	tasks, reports := gob.NewDecoder(in), gob.NewEncoder(out)
	var hello greeting
	if err := tasks.Decode(&hello); err != nil {
		return fmt.Errorf("lin: greeting: %w", err)
	}
	origin := momentOf(hello.Origin)
	if err := reports.Encode(greeting{}); err != nil {
		return fmt.Errorf("lin: greet back: %w", err)
	}
	for {
		var next task
		switch err := tasks.Decode(&next); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("lin: task: %w", err)
		}
		if err := reports.Encode(next.carryOut(store, share{hello.First, hello.Here}, origin)); err != nil {
			return fmt.Errorf("lin: report: %w", err)
		}
	}
}

// carryOut records all workloads side by side.
func (t task) carryOut(store Store, s share, origin time.Time) report {
	r := report{make([][]sent, len(t.Workloads))}
	var all sync.WaitGroup
	for i, w := range t.Workloads {
		all.Go(func() {
			r.Histories[i] = pack(w.record(store, s, func() time.Time {
				<-time.After(time.Until(origin.Add(t.At)))
				return origin
			}))
		})
	}
	all.Wait()
	return r
}

// momentOf returns a moment that was read from the wall clock in another process, by the monotonic clock of this one.
// Both clocks are read one after the other, and what comes between makes the moment seem later than it was. The
// earliest of many is right to within some tens of ns.
func momentOf(wall int64) time.Time {
	var earliest time.Time
	for i := range 100 {
		now := time.Now()
		if at := now.Add(time.Duration(wall - now.UnixNano())); i == 0 || at.Before(earliest) {
			earliest = at
		}
	}
	return earliest
}
