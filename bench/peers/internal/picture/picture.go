// Package picture draws what was measured, as SVG for a light and for a dark page.
//
// It uses gonum.org/v1/plot: maintained, pure Go, with logarithmic axes and fonts of its own, and without the
// browser that libraries around a chart in JavaScript need.
package picture

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A File is a picture that was drawn, twice: Name-light.svg and Name-dark.svg.
type File struct{ Name, Title string }

// Markdown shows the one that suits the reader's page.
func (f File) Markdown() string {
	return fmt.Sprintf("<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"%s-dark.svg\">\n"+
		"  <img alt=\"%s\" src=\"%s-light.svg\">\n</picture>\n\n", f.Name, f.Title, f.Name)
}

// A sheet is one picture before it is drawn.
type sheet struct {
	file          File
	width, height vg.Length
	draw          func(c draw.Canvas, t theme) error
}

// Draw draws all pictures for which there are numbers into dir, and returns them.
func Draw(s *report.Summary, dir string) ([]File, error) {
	var files []File
	for _, sheet := range append(barSheets(s), lineSheets(s)...) {
		for _, t := range []theme{light, dark} {
			svg, err := sheet.svg(t)
			if err != nil {
				return nil, fmt.Errorf("picture %s: %w", sheet.file.Name, err)
			}
			name := filepath.Join(dir, sheet.file.Name+"-"+t.name+".svg")
			if err := os.WriteFile(name, svg, 0o644); err != nil {
				return nil, err
			}
		}
		files = append(files, sheet.file)
	}
	return files, nil
}

// titleHeight is the room for the title of a whole picture, in points.
const titleHeight = 38

func (s sheet) svg(t theme) ([]byte, error) {
	canvas := vgsvg.New(s.width, s.height)
	c := draw.New(canvas)
	c.SetColor(t.page)
	c.Fill(c.Path())
	title := t.text(15)
	title.XAlign, title.YAlign = draw.XCenter, draw.YTop
	c.FillText(title, vg.Point{X: c.Center().X, Y: c.Max.Y - 8}, s.file.Title)
	const margin = 8
	if err := s.draw(draw.Crop(c, margin, -margin, margin, -titleHeight), t); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	// Where Liberation Sans is missing, a font of the same widths is to take its place.
	return []byte(strings.ReplaceAll(b.String(), "Liberation Sans", "Liberation Sans, Arial, Helvetica, sans-serif")), nil
}
