// Command queue pays 10 000 bills that come over a real queue, NATS JetStream inside this process, and pays each
// of them once: although some bills are published twice, and although the consumers are slow, fail, panic and
// are killed in the middle of it.
//
//	go run ./examples/queue
//	go run ./examples/queue -unguarded   # what happens without idem
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
	"time"
)

// options are what the flags say.
type options struct {
	payments  int
	twice     float64
	consumers int
	workers   int
	kill      time.Duration
	unguarded bool
	seed      uint64
	timeout   time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with its surroundings as arguments. It returns the exit status: 0 when every payment was made once,
// 1 when one was not, 2 when the demonstration itself could not be done, 130 when it was interrupted.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // the flag set has said why
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not done after %v, see -timeout", o.timeout))
	defer cancel()
	r, err := demonstrate(limited, o, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "queue: interrupted")
		return 130
	case err != nil && limited.Err() != nil:
		fmt.Fprintln(stderr, "queue:", context.Cause(limited))
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "queue:", err)
		return 2
	}
	r.print(stdout)
	if r.lost+r.double > 0 {
		return 1
	}
	return 0
}

// parse reads the flags.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("queue", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "Usage: queue [flags]\n\nPays bills from a queue, each of them once, whatever happens to the consumers.\n\n")
		fs.PrintDefaults()
	}
	fs.IntVar(&o.payments, "payments", 10_000, "`number` of bills")
	fs.Float64Var(&o.twice, "twice", 0.1, "which `part` of them is published twice")
	fs.IntVar(&o.consumers, "consumers", 4, "`number` of consumers at a time")
	fs.IntVar(&o.workers, "workers", 16, "`number` of bills that one consumer pays at once")
	fs.DurationVar(&o.kill, "kill", 500*time.Millisecond, "`duration` between two kills of a consumer; 0 for never")
	fs.BoolVar(&o.unguarded, "unguarded", false, "consume without idem, to see what it is for")
	fs.Uint64Var(&o.seed, "seed", 1, "what the chances of slow, failing and panicking are drawn from")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "when to give up")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	err := o.check(fs.Args())
	if err != nil {
		fmt.Fprintln(stderr, "queue:", err)
	}
	return o, err
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q: there are only flags, see -h", rest[0])
	case o.payments < 1 || o.payments > 1_000_000:
		return fmt.Errorf("-payments is %d, want 1 to 1000000", o.payments)
	case o.twice < 0 || o.twice > 1:
		return fmt.Errorf("-twice is %v, want 0 to 1", o.twice)
	case o.consumers < 1 || o.consumers > 100:
		return fmt.Errorf("-consumers is %d, want 1 to 100", o.consumers)
	case o.workers < 1 || o.workers > 1000:
		return fmt.Errorf("-workers is %d, want 1 to 1000", o.workers)
	case o.kill < 0:
		return fmt.Errorf("-kill is %v, want 0 or more", o.kill)
	case o.timeout <= 0:
		return fmt.Errorf("-timeout is %v, want more than 0", o.timeout)
	}
	return nil
}
