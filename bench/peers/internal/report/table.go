package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A column is one value of a workload's table.
type column struct {
	title string
	point Point
	alone bool // without the ratio to idem
}

// Tables writes a Markdown table for each workload that was measured.
func (s *Summary) Tables() string {
	var b strings.Builder
	for _, w := range Workloads {
		columns := s.columns(w.Name)
		if len(columns) == 0 {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", w.Title, w.About)
		s.table(&b, columns)
	}
	return b.String()
}

// columns are those of one workload's table.
func (s *Summary) columns(workload string) (columns []column) {
	for _, live := range s.Lives(workload) {
		for _, g := range s.Goroutines(workload) {
			for _, m := range metrics[workload] {
				title := m.title
				if g > 0 {
					title = fmt.Sprintf("%s, %d goroutines", title, g)
				}
				if g == 1 {
					title = strings.TrimSuffix(title, "s")
				}
				if byLive[workload] {
					title += " at " + Count(live)
				}
				columns = append(columns, column{title, Point{workload, g, live, m.name}, m.alone})
			}
		}
	}
	return columns
}

// A metric is a value's name in the rows and its title in a table.
type metric struct {
	name, title string
	alone       bool // a ratio to idem would say nothing
}

var (
	perOp = []metric{{"ns/op", "ns", false}}
	tails = []metric{
		{"p50", "median ns", false}, {"p99", "99 % ns", false}, {"p99.9", "99.9 % ns", false},
		{"p99.99", "99.99 % ns", false}, {"p100", "slowest ns", false},
	}

	metrics = map[string][]metric{
		"replay": perOp, "hot": perOp, "zipf": perOp, "growth": perOp,
		"fresh":   {{"ns/op", "ns", false}, {"allocs/op", "allocations", true}},
		"wait":    {{"wake-ns", "ns", false}},
		"memory":  {{"resident B/record", "bytes", false}, {"heap B/record", "bytes of heap", true}},
		"gc":      {{"gc cpu-ms", "ms", false}},
		"tail-gc": tails, "tail-expiry": tails,
	}

	// byLive are the workloads that are measured at several numbers of live records.
	byLive = map[string]bool{"memory": true, "gc": true, "growth": true}
)

func (s *Summary) table(b *strings.Builder, columns []column) {
	b.WriteString("|   |")
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", c.title)
	}
	b.WriteString("\n| - |" + strings.Repeat(" -: |", len(columns)) + "\n")
	for _, rival := range s.Rivals {
		var cells []string
		measured := false
		for _, c := range columns {
			got, ok := s.Cell(c.point, rival)
			measured = measured || ok
			switch {
			case !ok:
				cells = append(cells, "–")
			case c.alone:
				cells = append(cells, Number(got.Median))
			default:
				cells = append(cells, got.String())
			}
		}
		if measured {
			fmt.Fprintf(b, "| %s | %s |\n", rival, strings.Join(cells, " | "))
		}
	}
	b.WriteString("\n")
}

// String is the median, and in brackets its ratio to idem's.
func (c Cell) String() string {
	switch {
	case math.IsNaN(c.Ratio):
		return Number(c.Median)
	case c.Ratio < 9.995:
		return fmt.Sprintf("%s (%.2f)", Number(c.Median), c.Ratio)
	default:
		return fmt.Sprintf("%s (%s)", Number(c.Median), Number(c.Ratio))
	}
}

// Number formats to three digits.
func Number(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// Count formats a number of records: 10k, 5M.
func Count(n int) string {
	switch {
	case n >= 1_000_000:
		return strconv.FormatFloat(float64(n)/1e6, 'g', -1, 64) + "M"
	case n >= 1000:
		return strconv.FormatFloat(float64(n)/1e3, 'g', -1, 64) + "k"
	default:
		return strconv.Itoa(n)
	}
}
