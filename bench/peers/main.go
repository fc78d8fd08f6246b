// Command peers measures idem beside the libraries that one would otherwise build an idempotency store with. It
// writes raw data, tables and pictures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

func main() {
	if os.Getenv(childVariable) != "" {
		exit(serve(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	terminal := isatty.IsTerminal(os.Stdout.Fd())
	exit(peers(ctx, os.Args[1:], os.Stdout, terminal))
}

// exit ends the process: 0 without an error, 2 after a wrong flag, 1 otherwise.
func exit(err error) {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// A usageError is about the command line.
type usageError struct{ error }

// options are the flags.
type options struct {
	config
	render bool
}

func parse(args []string, out io.Writer) (options, error) {
	o := options{}
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are told by the caller
	workloads := f.String("workloads", "", "comma-separated workloads; empty: all")
	rivals := f.String("rivals", "", "comma-separated rivals beside idem; empty: all")
	f.IntVar(&o.passes, "passes", 5, "how often each rival has its turn with each workload, 1 to 100")
	f.IntVar(&o.keys, "keys", 1_000_000, "live records, 1000 to 10 million; stores grow to ten times as many")
	f.DurationVar(&o.block, "block", 150*time.Millisecond, "length of a turn, 1ms to 10s")
	f.StringVar(&o.out, "out", "results", "directory for raw data, tables and pictures")
	f.BoolVar(&o.render, "render", false, "measure nothing: make tables and pictures of the raw data in -out again")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		usage(f, out)
		return o, err
	} else if err != nil {
		return o, usageError{err}
	}
	var err, err2 error
	o.workloads, err = report.SelectWorkloads(*workloads)
	o.rivals, err2 = rival.Select(*rivals)
	if err = errors.Join(err, err2, o.validate(f.Args())); err != nil {
		return o, usageError{err}
	}
	return o, nil
}

func (o options) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.passes < 1 || o.passes > 100:
		return fmt.Errorf("-passes is %d: it must be 1 to 100", o.passes)
	case o.keys < 1000 || o.keys > 10_000_000:
		return fmt.Errorf("-keys is %d: it must be 1000 to 10000000", o.keys)
	case o.block < time.Millisecond || o.block > 10*time.Second:
		return fmt.Errorf("-block is %v: it must be 1ms to 10s", o.block)
	}
	return nil
}

func usage(f *flag.FlagSet, out io.Writer) {
	fmt.Fprint(out, "peers measures idem beside other libraries, each in a process of its own, in turns.\n\nFlags:\n")
	f.SetOutput(out)
	f.PrintDefaults()
	fmt.Fprint(out, "\nWorkloads:\n")
	for _, w := range report.Workloads {
		fmt.Fprintf(out, "  %-12s %s\n", w.Name, w.About)
	}
	fmt.Fprint(out, "\nRivals:\n")
	for _, r := range rival.All() {
		fmt.Fprintf(out, "  %-12s claim: %s\n", r.Name, r.Claim)
		if marks := r.Marks(); marks != "" {
			fmt.Fprintf(out, "  %-12s %s\n", "", marks)
		}
	}
}

// peers is the whole command.
func peers(ctx context.Context, args []string, out io.Writer, terminal bool) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	if o.render {
		return render(o.out)
	}
	p := newProgress(out, terminal)
	r := newRun(o.config, p)
	if err := r.checkMemory(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	m := thisMachine(o.rivals, args)
	p.expect(r.estimate())
	p.say(fmt.Sprintf("%d rivals, about %v", len(o.rivals), r.estimate().Round(10*time.Second)))
	if err := r.measure(ctx); err != nil {
		return err
	}
	if err := save(o.out, m, r.rows); err != nil {
		return err
	}
	p.say(fmt.Sprintf("done after %v: see %s", time.Since(p.begun).Round(time.Second), o.out))
	return r.errs()
}
