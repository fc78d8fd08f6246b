// Command fleet shows one store that several server processes share.
//
// It starts three servers, which are this program again, and customers who send each order to all of them at the
// same time. In the middle, when one server has just charged an order and not yet recorded it, that server is
// killed with SIGKILL; a moment later it is started again. At the end the books are compared with the records:
//
//   - With -store postgres the charge and the record are one transaction, so every order was charged once.
//   - With -store redis the charge happens elsewhere. Those orders that the dead server had in hand are charged by
//     another server too (-policy takeover), or are reported as unknown for a person to look at (-policy hold).
//
// It exits with 1 if any order was charged twice against what the store and the policy promise, or not at all.
//
// The server is that of REDIS_URL or DATABASE_URL, in which it cleans up behind itself; without them it is a private
// one, which is installed if there is none on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// The exit codes, as shells and CI read them.
const (
	exitOK          = 0
	exitFailed      = 1   // a promise was not kept, or something could not be run
	exitUsage       = 2   // nothing was run
	exitInterrupted = 130 // 128 + SIGINT
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := fleet{
		setup:     setup{Store: redisStore, Lease: 3 * time.Second},
		orders:    600,
		customers: 24,
		stdout:    stdout, stderr: stderr,
	}
	serve := ""
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a bad flag gets one line of ours, not the whole page of help
	flags.Var(choice{&f.Store, []string{redisStore, postgresStore}}, "store", "`where` the records are, redis or postgres")
	flags.Var(policy{&f.Policy}, "policy", "`what` becomes of a key whose server died, takeover or hold")
	flags.Var(number{&f.orders, 60, 20_000}, "orders", "`number` of orders, 60 to 20000")
	flags.Var(number{&f.customers, 1, 200}, "customers", "`number` of orders that are sent at a time, 1 to 200")
	flags.Var(seconds{&f.Lease, time.Second, time.Minute}, "lease", "`duration` after which a dead server is noticed, 1s to 1m")
	flags.StringVar(&serve, "serve", "", "be one of the servers, as this `JSON` says; for the program's own use")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "usage: fleet [flags]\n\nThree server processes share one store, and one of them is killed.\n\nflags:\n")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "fleet: %v; allowed are -store, -policy, -orders, -customers and -lease, which -h explains\n", err)
		return exitUsage
	}
	if serve != "" {
		return exitCode(serveOrders(ctx, serve, stderr), stderr)
	}
	return exitCode(f.run(ctx), stderr)
}

func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "fleet: interrupted")
		return exitInterrupted
	default:
		fmt.Fprintf(stderr, "fleet: %v\n", err)
		return exitFailed
	}
}

// The values of flags that know what they allow. Package flag calls String also on zero values.

type choice struct {
	value   *string
	allowed []string
}

func (c choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("must be %s", strings.Join(c.allowed, " or "))
	}
	*c.value = s
	return nil
}

type policy struct{ value *idem.LeasePolicy }

func (p policy) String() string {
	switch {
	case p.value == nil:
		return ""
	case *p.value == idem.Hold:
		return "hold"
	default:
		return "takeover"
	}
}

func (p policy) Set(s string) error {
	switch s {
	case "takeover":
		*p.value = idem.TakeOver
	case "hold":
		*p.value = idem.Hold
	default:
		return errors.New("must be takeover or hold")
	}
	return nil
}

type number struct {
	value       *int
	least, most int
}

func (n number) String() string {
	if n.value == nil {
		return ""
	}
	return strconv.Itoa(*n.value)
}

func (n number) Set(s string) error {
	v, err := strconv.Atoi(s)
	if err != nil || v < n.least || v > n.most {
		return fmt.Errorf("must be a whole number from %d to %d", n.least, n.most)
	}
	*n.value = v
	return nil
}

type seconds struct {
	value       *time.Duration
	least, most time.Duration
}

func (d seconds) String() string {
	if d.value == nil {
		return ""
	}
	return d.value.String()
}

func (d seconds) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v < d.least || v > d.most {
		return fmt.Errorf("must be a duration from %v to %v, such as 2s", d.least, d.most)
	}
	*d.value = v
	return nil
}
