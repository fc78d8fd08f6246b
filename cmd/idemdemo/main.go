// Command idemdemo shows what package idem does.
//
// Without a command it prints a tour of the contract from real calls, one line each, and then sends
// a storm of impatient, retrying clients to a small payments server on loopback that embeds the
// engine. It fails if any order was charged twice or not at all.
//
//	idemdemo                 the tour (tour.go) and the storm (storm.go, its server shop.go)
//	idemdemo serve           a payments API behind httpidem (serve.go, api.go) with a live page (board.go)
//	idemdemo load -url URL   a storm of retries through httpidem.Transport (load.go)
//
// All of it listens on loopback only, unless it is told otherwise, and keeps nothing on disk
// without -keep.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/seed-5bb5eb37/idem"
)

// The exit codes, as shells and CI read them.
const (
	exitOK          = 0
	exitFailed      = 1   // the engine, or the network, did not do what was expected
	exitUsage       = 2   // nothing was run
	exitInterrupted = 130 // 128 + SIGINT, what a shell reports for a program that Ctrl-C ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends the work in an orderly way; with the handler gone, a second one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// A command is one thing that idemdemo does. Its flags are made afresh for each run, so that tests
// can run it any number of times.
type command struct {
	name  string // as typed; empty for the command that runs when none is named
	about string // what -h says below the usage line

	// setup defines the command's flags and returns what runs once they are parsed.
	// They are two steps, so that -h and the messages about bad flags can ask for a command's flags
	// without running it.
	setup func(*flag.FlagSet) action
}

// An action does a command's work until it is done or ctx ends. Results go to stdout, what is only for
// whoever watches goes to stderr. What it returns is reported as a failure.
type action func(ctx context.Context, stdout, stderr io.Writer) error

// commands lists what idemdemo can do; the one without a name comes first.
func commands() []command {
	return []command{demoCommand(), serveCommand(), loadCommand()}
}

// run finds the command, parses its flags, runs it and returns the exit code. It is main without the
// process around it, for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd, rest, err := pick(commands(), args)
	if err != nil {
		fmt.Fprintf(stderr, "idemdemo: %v\n", err)
		return exitUsage
	}
	flags := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a bad flag gets one line of ours, not the whole page of help
	act := cmd.setup(flags)
	err = flags.Parse(rest)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(stdout, cmd, flags)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "idemdemo: %v\n%s\n", err, allowed(flags))
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "idemdemo: unexpected argument %q\n%s\n", flags.Arg(0), allowed(flags))
		return exitUsage
	}
	return exitCode(act(ctx, stdout, stderr), stderr)
}

// exitCode reports err, if there is one, and says how the program ends. An interrupt is not a failure of
// what was shown, so it has a code of its own; the cause that signal.NotifyContext gives is one too.
func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "idemdemo: interrupted")
		return exitInterrupted
	default:
		fmt.Fprintf(stderr, "idemdemo: %v\n", err)
		return exitFailed
	}
}

// pick returns the command that args begin with, or the nameless one, and the arguments left. A word that
// is no command is refused rather than ignored: it may be a misspelt one.
func pick(cmds []command, args []string) (command, []string, error) {
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	var names []string
	for _, c := range cmds {
		if c.name == name {
			return c, args, nil
		}
		if c.name != "" {
			names = append(names, c.name)
		}
	}
	return command{}, nil, fmt.Errorf("unknown command %q; the commands are %s, and none for the tour and the storm",
		name, strings.Join(names, " and "))
}

// help explains a command to somebody who asked, on stdout therefore.
func help(w io.Writer, c command, flags *flag.FlagSet) {
	name := strings.TrimSpace("idemdemo " + c.name)
	fmt.Fprintf(w, "usage: %s [flags]\n\n%s\n\nflags:\n", name, c.about)
	flags.SetOutput(w)
	flags.PrintDefaults()
}

// allowed names the flags that a command takes, for the message about one that it does not.
func allowed(flags *flag.FlagSet) string {
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
	return "allowed: " + strings.Join(names, ", ") + "; -h explains them"
}

// demoCommand is what runs without a command's name: the tour, then the storm.
func demoCommand() command {
	return command{
		about: "Prints a tour of the idempotency contract from real calls on the engine, then sends a storm of\n" +
			"retrying clients to a payments server on loopback. Exits with 1 if any order was charged twice\n" +
			"or was not charged.\n\n" +
			"Other commands, each with a -h of its own:\n" +
			"  idemdemo serve  a payments API to try by hand, with a live page\n" +
			"  idemdemo load   a storm of retries to that server",
		setup: func(flags *flag.FlagSet) action {
			s := &storm{orders: 1000, clients: 12, seed: 1}
			flags.Var(upTo(20_000, &s.orders), "orders", "`number` of orders in the storm, 1 to 20000")
			flags.Var(upTo(100, &s.clients), "clients", "`number` of clients that send each order at once, 1 to 100")
			flags.Uint64Var(&s.seed, "seed", s.seed, "`seed` of the storm's random delays, failures and time limits")
			return s.demo
		},
	}
}

// demo runs the tour and the storm, each on an engine of its own: the storm's figures are then read off
// its engine without the tour's calls in them.
func (s *storm) demo(ctx context.Context, stdout, stderr io.Writer) error {
	if err := withEngine(idem.Config{}, func(e *idem.Engine) error { return runTour(ctx, stdout, e) }); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	return withEngine(idem.Config{}, func(e *idem.Engine) error {
		books := newLedger()
		return s.run(ctx, stdout, stderr, e, books, newShop(e, books, s.seed))
	})
}

// withEngine calls f with an engine that is closed afterwards, when nothing of f may use it any more. That
// closing failed is reported too, since it would mean that something still did.
func withEngine(conf idem.Config, f func(*idem.Engine) error) error {
	e, err := idem.New(conf)
	if err != nil {
		return err
	}
	return errors.Join(f(e), e.Close())
}
