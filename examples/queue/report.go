package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// A report is what came of it.
type report struct {
	rows         [][2]any
	lost, double int
}

// report counts. A bill that was neither paid nor refused is lost; one that was paid twice, or paid and refused, is
// one too many.
func (d *demo) report(ctx context.Context, took time.Duration) (*report, error) {
	stream, err := d.broker.js.Stream(ctx, dead)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	var r report
	var effects int
	d.bank.mu.Lock()
	defer d.bank.mu.Unlock()
	for n := range d.payments {
		paid, refused := d.bank.paid[billID(n)], d.bank.refused[billID(n)]
		effects += paid
		if paid == 0 && refused == 0 {
			r.lost++
		}
		if paid > 1 || paid == 1 && refused > 0 {
			r.double++
		}
	}
	r.rows = [][2]any{
		{"bills", d.payments},
		{"messages published", d.published.Load()},
		{"deliveries", d.deliveries.Load()},
		{"runs of the handler", d.runs.Load()},
		{"payments made", effects},
		{"bills refused for good", len(d.bank.refused)},
		{"dead letters", stream.CachedInfo().State.Msgs},
		{"duplicates skipped", d.skipped.Load()},
		{"deliveries given back", d.retried.Load()},
		{"consumers killed", d.killed.Load()},
		{"payments lost", r.lost},
		{"payments made twice", r.double},
		{"took", took.Round(10 * time.Millisecond)},
	}
	return &r, nil
}

func (r *report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range r.rows {
		fmt.Fprintf(t, "%v\t%v\t\n", row[0], row[1])
	}
	_ = t.Flush() // to a terminal, or nobody
}
