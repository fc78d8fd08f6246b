package main

import (
	"fmt"
	"strings"
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
