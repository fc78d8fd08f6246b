package report_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.InDelta(t, 2, report.Median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, report.Median([]float64{4, 1, 3, 2}), 0)
	require.InDelta(t, 7, report.Median([]float64{7}), 0)
	require.True(t, math.IsNaN(report.Median(nil)))

	values := []float64{3, 1, 2}
	report.Median(values)
	require.Equal(t, []float64{3, 1, 2}, values, "the caller's order stays")
}

func row(rival string, pass int, ns float64) report.Row {
	return report.Row{
		Rival: rival, Workload: "replay", Goroutines: 2, Live: 1000, Pass: pass, Values: map[string]float64{"ns/op": ns},
	}
}

var point = report.Point{Workload: "replay", Goroutines: 2, Live: 1000, Metric: "ns/op"}

func TestRatiosAreTakenInsideAPass(t *testing.T) {
	// The machine is slower in some passes. One that the rival has no part in must not count.
	s := report.Summarize([]report.Row{
		row("idem", 1, 100), row("otter", 1, 200),
		row("idem", 2, 1000), row("otter", 2, 3000),
		row("idem", 3, 400), row("otter", 3, 1000),
		row("idem", 4, 1),
	})
	require.Equal(t, []string{"idem", "otter"}, s.Rivals)
	c, ok := s.Cell(point, "otter")
	require.True(t, ok)
	require.Equal(t, report.Cell{Median: 1000, Ratio: 2.5}, c)
	c, _ = s.Cell(point, "idem")
	require.Equal(t, report.Cell{Median: 250, Ratio: 1}, c)
	_, ok = s.Cell(point, "xsync")
	require.False(t, ok)
	require.Equal(t, []int{1000}, s.Lives("replay"))
	require.Equal(t, []int{2}, s.Goroutines("replay"))
}

func TestRatioNeedsIdem(t *testing.T) {
	s := report.Summarize([]report.Row{row("otter", 1, 200), row("idem", 2, 100)})
	c, _ := s.Cell(point, "otter")
	require.True(t, math.IsNaN(c.Ratio))
	require.Equal(t, "200", c.String())
}

func TestRawDataComesBack(t *testing.T) {
	rows := []report.Row{row("idem", 1, 100.25), row("otter", 1, 3)}
	var raw bytes.Buffer
	require.NoError(t, report.Write(&raw, rows))
	got, err := report.Read(&raw)
	require.NoError(t, err)
	require.Equal(t, rows, got)

	_, err = report.Read(strings.NewReader("{}\n{\"pass\":\"one\"}\n"))
	require.ErrorContains(t, err, "line 2")
}

func TestTables(t *testing.T) {
	s := report.Summarize([]report.Row{row("idem", 1, 100), row("otter", 1, 1234), {
		Rival: "idem", Workload: "gc", Live: 5_000_000, Pass: 1, Values: map[string]float64{"gc cpu-ms": 7.5},
	}, {
		Rival: "idem", Workload: "memory", Live: 1000, Pass: 1, Values: map[string]float64{"resident B/record": 330, "heap B/record": 20},
	}})
	require.Contains(t, s.Tables(), "| idem | 330 (1.00) | 20 |\n")
	tables := s.Tables()
	require.Contains(t, tables, "|   | ns, 2 goroutines |\n| - | -: |\n| idem | 100 (1.00) |\n| otter | 1234 (12.3) |\n")
	require.Contains(t, tables, "|   | ms at 5M |\n| - | -: |\n| idem | 7.5 (1.00) |\n\n", "a rival that was not measured has no row")
	require.NotContains(t, tables, "hot key")
}

func TestCount(t *testing.T) {
	require.Equal(t, []string{"20", "10k", "1.5M"}, []string{report.Count(20), report.Count(10_000), report.Count(1_500_000)})
}

func TestSelectWorkloads(t *testing.T) {
	all, err := report.SelectWorkloads("")
	require.NoError(t, err)
	require.Len(t, all, len(report.Workloads))

	some, err := report.SelectWorkloads("gc, replay")
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"gc": true, "replay": true}, some)

	_, err = report.SelectWorkloads("replay,hotkey")
	require.ErrorContains(t, err, `unknown workload "hotkey"`)
	require.ErrorContains(t, err, "tail-expiry")
}
