package picture

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A curve is one rival's line.
type curve struct {
	name   string
	points plotter.XYs
}

// lineSheets are the pictures of lines: slowest replays, and cost against live keys.
func lineSheets(s *report.Summary) (sheets []sheet) {
	for _, workload := range []string{"tail-gc", "tail-expiry"} {
		for _, live := range s.Lives(workload) {
			sheets = append(sheets, lineSheet(title(workload), workload, tailCurves(s, workload, live), tailAxes)...)
		}
	}
	return append(sheets, lineSheet(title("growth"), "growth", growthCurves(s), growthAxes)...)
}

func title(workload string) string {
	at := slices.IndexFunc(report.Workloads, func(w report.Workload) bool { return w.Name == workload })
	return report.Workloads[at].Title
}

func tailCurves(s *report.Summary, workload string, live int) []curve {
	return curves(s, func(rival string) (points plotter.XYs) {
		for _, p := range load.Percentiles {
			c, ok := s.Cell(report.Point{Workload: workload, Live: live, Metric: load.PercentileName(p)}, rival)
			if ok && p >= 50 && p < 100 {
				points = append(points, plotter.XY{X: nines(p), Y: max(c.Median, 1)})
			}
		}
		return points
	})
}

func growthCurves(s *report.Summary) []curve {
	return curves(s, func(rival string) (points plotter.XYs) {
		for _, live := range s.Lives("growth") {
			c, ok := s.Cell(report.Point{Workload: "growth", Goroutines: 1, Live: live, Metric: "ns/op"}, rival)
			if ok {
				points = append(points, plotter.XY{X: float64(live), Y: c.Median})
			}
		}
		return points
	})
}

// curves are those of the rivals that have points.
func curves(s *report.Summary, points func(rival string) plotter.XYs) (all []curve) {
	for _, name := range s.Rivals {
		if xys := points(name); len(xys) > 0 {
			all = append(all, curve{name, xys})
		}
	}
	return all
}

// nines spreads percentiles: 90 is 1, 99 is 2, 99.9 is 3.
func nines(percentile float64) float64 { return -math.Log10(1 - percentile/100) }

func tailAxes(p *plot.Plot) {
	p.X.Label.Text, p.Y.Label.Text = "share of replays that were faster, %", "time of a replay"
	var ticks plot.ConstantTicks
	for _, v := range []float64{50, 90, 99, 99.9, 99.99, 99.999} {
		ticks = append(ticks, plot.Tick{Value: nines(v), Label: fmt.Sprint(v)})
	}
	p.X.Tick.Marker = ticks
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers(duration)
	p.Y.Min, p.Y.Max = powerBelow(p.Y.Min), powerBelow(p.Y.Max)*10
}

func growthAxes(p *plot.Plot) {
	p.X.Label.Text, p.Y.Label.Text = "live keys", "ns per replay, 1 goroutine"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, powers(func(v float64) string { return report.Count(int(math.Round(v))) })
	p.Y.Min = 0
}

func powerBelow(v float64) float64 { return math.Pow(10, math.Floor(math.Log10(v))) }

// duration formats ns.
func duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return report.Number(ns/1e9) + " s"
	case ns >= 1e6:
		return report.Number(ns/1e6) + " ms"
	case ns >= 1e3:
		return report.Number(ns/1e3) + " µs"
	default:
		return report.Number(ns) + " ns"
	}
}

// lineSheet is a picture of curves, with the legend to the right of them.
func lineSheet(title, name string, all []curve, axes func(*plot.Plot)) []sheet {
	if len(all) == 0 {
		return nil
	}
	last := func(c curve) float64 { return c.points[len(c.points)-1].Y }
	slices.SortStableFunc(all, func(a, b curve) int { return cmp.Compare(last(b), last(a)) }) // as they end
	return []sheet{{File{name, title}, 760, 440, func(c draw.Canvas, t theme) error {
		plt, legend := t.plot(), plot.NewLegend()
		legend.TextStyle, legend.Top, legend.Left = t.text(11), true, true
		legend.ThumbnailWidth, legend.Padding = 26, 5
		if err := t.addCurves(plt, &legend, all); err != nil {
			return err
		}
		axes(plt)
		const legendWidth = 130
		plt.Draw(draw.Crop(c, 0, -legendWidth, 0, 0))
		legend.Draw(draw.Crop(c, c.Max.X-c.Min.X-legendWidth+10, 0, 0, -10))
		return nil
	}}}
}

func (t theme) addCurves(plt *plot.Plot, legend *plot.Legend, all []curve) error {
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = t.grid, t.grid
	plt.Add(grid)
	for _, one := range all {
		line, err := plotter.NewLine(one.points)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		line.LineStyle = t.line(one.name)
		plt.Add(line)
		legend.Add(one.name, line)
	}
	return nil
}

// line is the style of a rival's curve, the same in all pictures: idem's is thick.
func (t theme) line(name string) draw.LineStyle {
	i := slices.IndexFunc(rival.All(), func(r rival.Rival) bool { return r.Name == name })
	if i <= 0 {
		return draw.LineStyle{Color: t.idem, Width: 3}
	}
	style := draw.LineStyle{Color: t.lines[i%len(t.lines)], Width: 1.4}
	if i > len(t.lines) {
		style.Dashes = []vg.Length{5, 3}
	}
	return style
}
