package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// A row is one line of a table: what, how much, and a word about it.
type row struct{ label, value, note string }

// printTable writes rows with the labels flush left and the values flush right, so that the digits of
// one figure stand below those of another. Width is counted in characters, which is right for our labels.
func printTable(w io.Writer, rows []row) {
	labels, values := 0, 0
	for _, r := range rows {
		labels = max(labels, utf8.RuneCountInString(r.label))
		values = max(values, utf8.RuneCountInString(r.value))
	}
	for _, r := range rows {
		line := fmt.Sprintf("  %-*s  %*s", labels, r.label, values, r.value)
		if r.note != "" {
			line += "  " + r.note
		}
		fmt.Fprintln(w, line)
	}
}

// grouped writes n with commas between its thousands, so that a reader need not count digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// percentile returns the value that p percent of durations do not exceed, and zero for none. It is one of
// them, not a value in between (the nearest rank). It sorts durations.
func percentile(durations []time.Duration, p int) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	return durations[(len(durations)*p+99)/100-1]
}

// quantiles writes the median of durations and their 99th percentile, which is what the unlucky ones get; a dash if there
// are none.
func quantiles(durations []time.Duration) string {
	if len(durations) == 0 {
		return "-"
	}
	return millis(percentile(durations, 50)) + " / " + millis(percentile(durations, 99))
}

// millis writes d in milliseconds with one decimal.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
