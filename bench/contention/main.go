// Command contention asks what more processors than this machine has would do to the engine's locks. It measures the
// engine with few shards, where two goroutines meet often, fits a model to one of these measurements, holds it against
// the others, and prints what it says for more processors. It also runs more processors' worth of threads than there
// are, which shows what happens when the system takes a processor from the holder of a lock.
package main

import (
	"fmt"
	"os"
	"text/tabwriter"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: contention (it has no flags)")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "contention:", err)
		os.Exit(1)
	}
}

func run() error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	m, err := check(out)
	if err != nil {
		return err
	}
	predict(out, m)
	if err := oversubscribe(out); err != nil {
		return err
	}
	return out.Flush()
}

// check fits the model to one and to two goroutines on one shard, and compares it with two goroutines on more.
func check(out *tabwriter.Writer) (model, error) {
	alone, err := measure(1, 1, 1)
	if err != nil {
		return model{}, err
	}
	together, err := measure(1, 2, 2)
	if err != nil {
		return model{}, err
	}
	m := fit(alone, together)
	fmt.Fprintf(out, "a replay takes %.0f ns, of which the model has %.0f under the lock\n", alone, m.hold)
	fmt.Fprint(out, "\ntwo goroutines, ns for each replay of both\nshards\tmeasured\tmodel\t\n")
	for shards := 1; shards <= 64; shards *= 2 {
		measured, err := measure(shards, 2, 2)
		if err != nil {
			return model{}, err
		}
		fmt.Fprintf(out, "%d\t%.0f\t%.0f\t\n", shards, measured, m.perOperation(2, shards))
	}
	return m, out.Flush()
}

// predict prints how much of so many processors the locks leave.
func predict(out *tabwriter.Writer, m model) {
	fmt.Fprint(out, "\nthe model, for more processors that do nothing but replay: speed-up\nprocessors\t1 shard\t8 shards\t64 shards\t32 for each\t\n")
	one := m.perOperation(1, 1)
	for processors := 1; processors <= 128; processors *= 2 {
		fmt.Fprintf(out, "%d\t", processors)
		for _, shards := range []int{1, 8, 64, 32 * processors} {
			fmt.Fprintf(out, "%.1f\t", one/m.perOperation(processors, shards))
		}
		fmt.Fprintln(out)
	}
}

// oversubscribe prints the cost of a replay when more threads want to run than there are processors.
func oversubscribe(out *tabwriter.Writer) error {
	fmt.Fprint(out, "\nthreads that run Go code on these processors, as many goroutines, the default shards, ns for each replay of all\nGOMAXPROCS\t\n")
	for threads := 1; threads <= 64; threads *= 2 {
		ns, err := measure(0, threads, threads)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d\t%.0f\t\n", threads, ns)
	}
	return nil
}
