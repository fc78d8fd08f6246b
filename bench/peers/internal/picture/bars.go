package picture

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A panel is one set of bars in a picture.
type panel struct {
	title, unit string
	point       report.Point
	log         bool
}

func perOp(workload string, goroutines, live int) panel {
	title := fmt.Sprintf("%d goroutines", goroutines)
	if goroutines == 1 {
		title = "1 goroutine"
	}
	return panel{title: title, unit: "ns per operation", point: report.Point{
		Workload: workload, Goroutines: goroutines, Live: live, Metric: "ns/op",
	}}
}

// barSheets are the pictures of bars: one for each workload, and one of all of them at two goroutines.
func barSheets(s *report.Summary) (sheets []sheet) {
	var overview []panel
	for _, w := range report.Workloads {
		var panels []panel
		for _, live := range s.Lives(w.Name) {
			panels = append(panels, panelsOf(s, w.Name, live)...)
		}
		for _, p := range panels {
			if p.point.Goroutines == 2 {
				p.title = w.Title
				overview = append(overview, p)
			}
		}
		sheets = append(sheets, barSheet(s, File{w.Name, w.Title}, panels)...)
	}
	return append(barSheet(s, File{"overview", "ns per operation, 2 goroutines"}, overview), sheets...)
}

func panelsOf(s *report.Summary, workload string, live int) (panels []panel) {
	switch workload {
	case "replay", "hot", "zipf", "fresh":
		for _, g := range s.Goroutines(workload) {
			panels = append(panels, perOp(workload, g, live))
		}
	case "wait":
		for _, g := range s.Goroutines(workload) {
			panels = append(panels, panel{fmt.Sprintf("%d duplicates", g), "ns from Complete until all have it", report.Point{
				Workload: workload, Goroutines: g, Live: live, Metric: "wake-ns",
			}, false})
		}
	case "memory":
		panels = append(panels, panel{report.Count(live) + " live records", "bytes per record", report.Point{
			Workload: workload, Live: live, Metric: "resident B/record",
		}, false})
	case "gc":
		panels = append(panels, panel{report.Count(live) + " live records", "processor time, ms", report.Point{
			Workload: workload, Live: live, Metric: "gc cpu-ms",
		}, true})
	}
	return panels
}

const (
	panelWidth = 330 // points
	barHeight  = 19
)

// barSheet lays panels side by side, two of four in a row. It is no picture if there is nothing to show.
func barSheet(s *report.Summary, f File, panels []panel) []sheet {
	if len(panels) == 0 {
		return nil
	}
	perRow := min(len(panels), 3)
	if len(panels) == 4 {
		perRow = 2
	}
	rows := (len(panels) + perRow - 1) / perRow
	const legend, around = 24, 70 // below all bars; above and below those of a panel: title, axis and its label
	height := vg.Length(rows*(barHeight*len(s.Rivals)+around) + titleHeight + legend)
	return []sheet{{f, vg.Length(panelWidth * perRow), height, func(c draw.Canvas, t theme) error {
		barLegend(c, t)
		tiles := draw.Tiles{Cols: perRow, Rows: rows, PadX: 12, PadY: 6}
		area := draw.Crop(c, 0, 0, legend, 0)
		for i, p := range panels {
			if err := p.draw(s, tiles.At(area, i%perRow, i/perRow), t); err != nil {
				return err
			}
		}
		return nil
	}}}
}

// barLegend says what the colours are, below all bars.
func barLegend(c draw.Canvas, t theme) {
	x := c.Min.X + 4
	style := t.text(10.5)
	for _, entry := range []struct {
		color color.Color
		text  string
	}{{t.idem, "idem"}, {t.keeps, "rival"}, {t.lose, "rival that may drop live records"}} {
		box := []vg.Point{{X: x, Y: c.Min.Y + 4}, {X: x + 12, Y: c.Min.Y + 4}, {X: x + 12, Y: c.Min.Y + 14}, {X: x, Y: c.Min.Y + 14}}
		c.FillPolygon(entry.color, box)
		c.FillText(style, vg.Point{X: x + 17, Y: c.Min.Y + 5}, entry.text)
		x += 17 + style.Width(entry.text) + 18
	}
	style.XAlign = draw.XRight
	c.FillText(style, vg.Point{X: c.Max.X - 4, Y: c.Min.Y + 5}, "* never frees what expired; in brackets: ratio to idem")
}

// A bar is one rival's.
type bar struct {
	name  string
	cell  report.Cell
	color color.Color
}

// draw draws one panel, the shortest bar on top.
func (p panel) draw(s *report.Summary, c draw.Canvas, t theme) error {
	bars := p.bars(s, t)
	if len(bars) == 0 {
		return fmt.Errorf("nothing was measured for %v", p.point)
	}
	plt := t.plot()
	plt.Title.Text, plt.X.Label.Text = p.title, p.unit
	plt.Title.Padding = 4
	names := make([]string, len(bars))
	for i, b := range bars {
		names[i] = b.name
	}
	plt.NominalY(names...)
	plt.Y.Tick.Width, plt.Y.Width, plt.Y.Padding = 0, 0, 0
	numbers, err := t.numbers(bars)
	if err != nil {
		return err
	}
	plt.Add(barPlotter{bars}, numbers)
	p.scale(plt, bars)
	plt.Y.Min, plt.Y.Max = -0.6, float64(len(bars))-0.4
	plt.Draw(c)
	return nil
}

// numbers are written behind the bars.
func (t theme) numbers(bars []bar) (*plotter.Labels, error) {
	var labels plotter.XYLabels
	for i, b := range bars {
		labels.XYs = append(labels.XYs, plotter.XY{X: b.cell.Median, Y: float64(i)})
		labels.Labels = append(labels.Labels, b.cell.String())
	}
	numbers, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, err
	}
	for i := range numbers.TextStyle {
		numbers.TextStyle[i] = t.text(10)
		numbers.TextStyle[i].YAlign = draw.YCenter
	}
	numbers.Offset = vg.Point{X: 4}
	return numbers, nil
}

// bars returns those of the rivals that have a value, the smallest last, as axes count upwards.
func (p panel) bars(s *report.Summary, t theme) (bars []bar) {
	known := map[string]rival.Rival{}
	for _, r := range rival.All() {
		known[r.Name] = r
	}
	for _, name := range s.Rivals {
		c, ok := s.Cell(p.point, name)
		if !ok {
			continue
		}
		b := bar{name, c, t.keeps}
		if known[name].Lossy {
			b.color = t.lose
		}
		if known[name].Expiry == rival.Never {
			b.name += " *"
		}
		if name == report.Baseline {
			b.color = t.idem
		}
		bars = append(bars, b)
	}
	slices.SortStableFunc(bars, func(a, b bar) int { return cmp.Compare(b.cell.Median, a.cell.Median) })
	return bars
}

// scale leaves room for the numbers behind the bars.
func (p panel) scale(plt *plot.Plot, bars []bar) {
	longest, shortest := bars[0].cell.Median, bars[len(bars)-1].cell.Median
	plt.X.Min, plt.X.Max = 0, max(longest, 1e-9)*1.5
	if p.log {
		least := math.Pow(10, math.Floor(math.Log10(max(shortest, 1e-3))))
		most := math.Pow(max(longest, 10*least)/least, 1.5) * least
		plt.X.Min, plt.X.Max = least, most
		plt.X.Scale, plt.X.Tick.Marker = plot.LogScale{}, powers(report.Number)
	}
}

// powers are ticks at the powers of ten.
func powers(name func(float64) string) plot.TickerFunc {
	return func(least, most float64) (ticks []plot.Tick) {
		for v := math.Pow(10, math.Ceil(math.Log10(least)-1e-9)); v <= most*(1+1e-9); v *= 10 {
			ticks = append(ticks, plot.Tick{Value: v, Label: name(v)})
		}
		return ticks
	}
}

// barPlotter draws bars from the left edge, so that they also stand on a logarithmic axis.
type barPlotter struct{ bars []bar }

// Plot implements the library's Plotter.
func (b barPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, bar := range b.bars {
		low, high, end := y(float64(i)-0.36), y(float64(i)+0.36), x(max(bar.cell.Median, p.X.Min))
		c.FillPolygon(bar.color, []vg.Point{{X: c.Min.X, Y: low}, {X: end, Y: low}, {X: end, Y: high}, {X: c.Min.X, Y: high}})
	}
}
