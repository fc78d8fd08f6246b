// Package report makes medians, ratios and tables of what was measured.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// Baseline is the rival that all ratios are to.
const Baseline = "idem"

// A Row is what one step measured: the raw data.
type Row struct {
	Rival      string             `json:"rival"`
	Workload   string             `json:"workload"`
	Goroutines int                `json:"goroutines,omitempty"`
	Live       int                `json:"live,omitempty"` // records that do not expire
	Pass       int                `json:"pass"`
	Values     map[string]float64 `json:"values"` // by name, which says the unit
}

// Write writes rows as lines of JSON, with values to a hundredth.
func Write(w io.Writer, rows []Row) error {
	enc := json.NewEncoder(w)
	for _, row := range rows {
		rounded := make(map[string]float64, len(row.Values))
		for name, v := range row.Values {
			rounded[name] = math.Round(v*100) / 100
		}
		row.Values = rounded
		if err := enc.Encode(row); err != nil {
			return err
		}
	}
	return nil
}

// Read reads what Write wrote. An error says which line it is about.
func Read(r io.Reader) (rows []Row, err error) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		var row Row
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(rows)+1, err)
		}
		rows = append(rows, row)
	}
	return rows, in.Err()
}

// A Point is where a value belongs: what was measured, under which load.
type Point struct {
	Workload   string
	Goroutines int
	Live       int // 0: whatever it was
	Metric     string
}

// A Cell is what one rival has at one point.
type Cell struct {
	Median float64 // over the passes
	Ratio  float64 // the median of the passes' ratios to idem; NaN if there are none
}

// A Summary holds the cells of all points and rivals.
type Summary struct {
	Rivals []string // that have any, in the order of their first rows
	cells  map[Point]map[string]Cell
}

// Summarize takes the medians over passes. Ratios are taken inside a pass, as a machine that is shared is slower
// in one than in another.
func Summarize(rows []Row) *Summary {
	s := &Summary{cells: map[Point]map[string]Cell{}}
	byPass := map[Point]map[string]map[int]float64{} // by point, rival and pass
	for _, row := range rows {
		if !slices.Contains(s.Rivals, row.Rival) {
			s.Rivals = append(s.Rivals, row.Rival)
		}
		for metric, v := range row.Values {
			p := Point{row.Workload, row.Goroutines, row.Live, metric}
			if byPass[p] == nil {
				byPass[p] = map[string]map[int]float64{}
			}
			if byPass[p][row.Rival] == nil {
				byPass[p][row.Rival] = map[int]float64{}
			}
			byPass[p][row.Rival][row.Pass] = v
		}
	}
	for p, rivals := range byPass {
		s.cells[p] = map[string]Cell{}
		for rival, passes := range rivals {
			s.cells[p][rival] = cell(passes, rivals[Baseline])
		}
	}
	return s
}

func cell(passes, baseline map[int]float64) Cell {
	var values, ratios []float64
	for pass, v := range passes {
		values = append(values, v)
		if base, ok := baseline[pass]; ok && base != 0 {
			ratios = append(ratios, v/base)
		}
	}
	return Cell{Median(values), Median(ratios)}
}

// Median returns the middle value, or the mean of the two in the middle. It is NaN of nothing.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Cell returns what a rival has at a point.
func (s *Summary) Cell(p Point, rival string) (Cell, bool) {
	c, ok := s.cells[p][rival]
	return c, ok
}

// Lives returns the numbers of live records that a workload has rows for, ascending.
func (s *Summary) Lives(workload string) (lives []int) {
	for p := range s.cells {
		if p.Workload == workload && !slices.Contains(lives, p.Live) {
			lives = append(lives, p.Live)
		}
	}
	slices.Sort(lives)
	return lives
}

// Goroutines returns the numbers of goroutines that a workload has rows for, ascending.
func (s *Summary) Goroutines(workload string) (numbers []int) {
	for p := range s.cells {
		if p.Workload == workload && !slices.Contains(numbers, p.Goroutines) {
			numbers = append(numbers, p.Goroutines)
		}
	}
	slices.Sort(numbers)
	return numbers
}
