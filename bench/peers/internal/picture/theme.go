package picture

import (
	"image/color"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
)

// A theme is the colours for one kind of page.
type theme struct {
	name              string
	page, ink, grid   color.Color
	idem, keeps, lose color.Color   // bars: idem, rivals, rivals that may drop live records
	lines             []color.Color // for rivals, in turn
}

var (
	light = theme{
		name: "light", page: rgb(0xffffff), ink: rgb(0x1f2328), grid: rgb(0xd8dee4),
		idem: rgb(0x0969da), keeps: rgb(0x8c959f), lose: rgb(0xd9b65c),
		lines: colours(0xcf222e, 0x1a7f37, 0x8250df, 0xbc4c00, 0x1b7c83, 0xbf3989, 0x7d4e00),
	}
	dark = theme{
		name: "dark", page: rgb(0x0d1117), ink: rgb(0xe6edf3), grid: rgb(0x2d333b),
		idem: rgb(0x58a6ff), keeps: rgb(0x7d8590), lose: rgb(0x9e7b2f),
		lines: colours(0xff7b72, 0x56d364, 0xbc8cff, 0xf0883e, 0x39c5cf, 0xf778ba, 0xd4a72c),
	}
)

func rgb(v uint32) color.Color {
	return color.RGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff}
}

func colours(values ...uint32) (c []color.Color) {
	for _, v := range values {
		c = append(c, rgb(v))
	}
	return c
}

// fonts holds the family that comes with the library.
var fonts = font.NewCache(liberation.Collection())

// text is a style for text of so many points.
func (t theme) text(size vg.Length) text.Style {
	return text.Style{
		Color:   t.ink,
		Font:    font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size),
		Handler: text.Plain{Fonts: fonts},
	}
}

// plainTicks have no more digits than they need.
type plainTicks struct{ plot.DefaultTicks }

func (p plainTicks) Ticks(least, most float64) []plot.Tick {
	ticks := p.DefaultTicks.Ticks(least, most)
	for i := range ticks {
		if !ticks[i].IsMinor() {
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'f', -1, 64)
		}
	}
	return ticks
}

// plot returns an empty plot in these colours.
func (t theme) plot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = t.page
	p.X.Tick.Marker, p.Y.Tick.Marker = plainTicks{}, plainTicks{}
	p.TextHandler = text.Plain{Fonts: fonts}
	restyle := func(s *text.Style, size vg.Length) {
		plain := t.text(size)
		s.Color, s.Font, s.Handler = plain.Color, plain.Font, plain.Handler
	}
	restyle(&p.Title.TextStyle, 12)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		restyle(&axis.Label.TextStyle, 11)
		restyle(&axis.Tick.Label, 10)
		axis.Color, axis.Tick.Color = t.grid, t.grid
	}
	return p
}
