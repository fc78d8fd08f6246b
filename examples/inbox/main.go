// Command inbox consumes payments from a real queue, NATS JetStream inside this process, into Postgres. The payment,
// the row of an outbox that announces it, and the record that the message is done are committed in one
// transaction: a transactional inbox and outbox. Whatever fails, and whenever, each payment is made and announced once.
//
//	go run ./examples/inbox                                       # on a Postgres of its own
//	DATABASE_URL=postgres://me@127.0.0.1/db go run ./examples/inbox # in a schema of its own, dropped at the end
//
// It prints what happened and exits with status 1 when a payment was lost or made twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"
)

// options are what the flags say.
type options struct {
	payments int
	workers  int
	timeout  time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with its surroundings as arguments. It returns the exit status: 0 when every payment was made once, 1
// when one was not, 2 when the demonstration itself could not be done, 130 when it was interrupted.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not done after %v, see -timeout", o.timeout))
	defer cancel()
	r, err := demonstrate(limited, o)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "inbox: interrupted")
		return 130
	case err != nil && limited.Err() != nil:
		fmt.Fprintln(stderr, "inbox:", context.Cause(limited))
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "inbox:", err)
		return 2
	}
	r.print(stdout)
	if !r.ok() {
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("inbox", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "Usage: inbox [flags]\n\nConsumes payments into Postgres, each of them once, whatever fails.\n\n")
		fs.PrintDefaults()
	}
	fs.IntVar(&o.payments, "payments", 1000, "`number` of payments; every other one is published twice")
	fs.IntVar(&o.workers, "workers", 8, "`number` of payments that are made at once")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Minute, "when to give up")
	if err = fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: there are only flags, see -h", fs.Arg(0))
	case o.payments < 1 || o.payments > 1_000_000:
		err = fmt.Errorf("-payments is %d, want 1 to 1000000", o.payments)
	case o.workers < 1 || o.workers > 1000:
		err = fmt.Errorf("-workers is %d, want 1 to 1000", o.workers)
	case o.timeout <= 0:
		err = fmt.Errorf("-timeout is %v, want more than 0", o.timeout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "inbox:", err)
	}
	return o, err
}

// A report is what happened.
type report struct {
	ordered, published                   int
	deliveries, runs, skipped            int
	rolledBack, forgotten                int
	payments, distinct, announced, other int
}

// ok reports whether each payment was made and announced once.
func (r *report) ok() bool {
	return r.payments == r.ordered && r.distinct == r.ordered && r.announced == r.ordered && r.other == 0
}

func (r *report) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		name string
		n    int
	}{
		{"payments ordered", r.ordered},
		{"messages published", r.published},
		{"deliveries", r.deliveries},
		{"runs of the handler", r.runs},
		{"rolled back", r.rolledBack},
		{"committed, then lost sight of", r.forgotten},
		{"duplicates skipped", r.skipped},
		{"payments made", r.payments},
		{"of them different ones", r.distinct},
		{"announced in the outbox", r.announced},
		{"announced without a payment", r.other},
	} {
		fmt.Fprintf(tw, "%s\t%d\t\n", row.name, row.n)
	}
	_ = tw.Flush()
}
