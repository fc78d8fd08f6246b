package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// report prints what happened. It returns an error when a promise was broken.
func (f *fleet) report(sent *customers, a audit) error {
	w := f.stdout
	fmt.Fprintf(w, "%d orders, each sent to three servers at the same time; store %s, policy %v\n", f.orders, f.Store, policy{&f.Policy})
	fmt.Fprintf(w, "server %s was killed with SIGKILL in the middle of an order, and came back as %s after %v\n\n", victim, reborn, downtime)

	// What the customers saw.
	fmt.Fprintf(w, "  %-22s %6d\n", "answers", sent.answers["fresh"]+sent.answers["replay"]+sent.answers["unknown"])
	fmt.Fprintf(w, "    %-20s %6d\n", "by the owner", sent.answers["fresh"])
	fmt.Fprintf(w, "    %-20s %6d\n", "replayed", sent.answers["replay"])
	fmt.Fprintf(w, "    %-20s %6d\n", "unknown", sent.answers["unknown"])
	fmt.Fprintf(w, "  %-22s %6d\n\n", "tries without answer", sent.retries)

	// What the audit found.
	line := func(label string, orders []string, note string) {
		text := fmt.Sprintf("  %-22s %6d  %s %s", label, len(orders), note, listed(orders))
		fmt.Fprintln(w, strings.TrimRight(text, " "))
	}
	fmt.Fprintf(w, "  %-22s %6d\n", "charged once", len(a.once))
	if len(a.rolledBack) > 0 {
		line("  after a rollback", a.rolledBack, "the dead server had not committed:")
	}
	line("taken over", a.takenOver, note(a.takenOver, "charged by the dead server and by another:"))
	line("unknown", a.unknown, note(a.unknown, "left to a person to resolve:"))
	line("promises broken", a.broken, "")
	if len(a.broken) > 0 {
		return fmt.Errorf("%d promises were broken", len(a.broken))
	}
	return nil
}

func note(orders []string, text string) string {
	if len(orders) == 0 {
		return ""
	}
	return text
}

// listed names orders, but not more than fit on a line or two.
func listed(orders []string) string {
	const most = 12
	if len(orders) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(orders[:most], ", "), len(orders)-most)
	}
	return strings.Join(orders, ", ")
}

// showProgress rewrites one line on a terminal, until stop is called, which wipes it. It writes nothing into files
// and pipes.
func showProgress(w io.Writer, line func() string) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer fmt.Fprint(w, "\r\x1b[K")
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			fmt.Fprintf(w, "\r%s\x1b[K", line())
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
