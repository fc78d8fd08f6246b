package picture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/picture"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/stretchr/testify/require"
)

// rows are one of each workload for two rivals.
func rows() (all []report.Row) {
	for i, rival := range []string{"idem", "freecache"} {
		v := float64(100 * (i + 1))
		add := func(workload string, g, live int, values map[string]float64) {
			all = append(all, report.Row{Rival: rival, Workload: workload, Goroutines: g, Live: live, Pass: 1, Values: values})
		}
		for _, g := range []int{1, 2} {
			add("replay", g, 1000, map[string]float64{"ns/op": v})
			add("fresh", g, 0, map[string]float64{"ns/op": v})
		}
		tail := map[string]float64{}
		for _, p := range load.Percentiles {
			tail[load.PercentileName(p)] = v + 10*p
		}
		add("tail-gc", 0, 1000, tail)
		for _, live := range []int{10, 100, 1000} {
			add("growth", 1, live, map[string]float64{"ns/op": v})
			add("memory", 0, live, map[string]float64{"resident B/record": v})
			add("gc", 0, live, map[string]float64{"gc cpu-ms": v / 1e4})
		}
	}
	return all
}

func TestEveryPictureIsDrawnForLightAndDark(t *testing.T) {
	dir := t.TempDir()
	files, failed := picture.Draw(report.Summarize(rows()), dir)
	require.NoError(t, failed)
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"overview", "replay", "fresh", "memory", "gc", "tail-gc", "growth"}, names)
	for _, f := range files {
		for page, colour := range map[string]string{"light": "#FFFFFF", "dark": "#0D1117"} {
			t.Run(f.Name+" "+page, func(t *testing.T) {
				svg, err := os.ReadFile(filepath.Join(dir, f.Name+"-"+page+".svg"))
				require.NoError(t, err)
				text := readXML(t, string(svg))
				for _, want := range []string{f.Title, "idem", "freecache"} {
					require.Contains(t, text, want)
				}
				require.NotContains(t, string(svg), "NaN")
				require.Contains(t, strings.ToUpper(string(svg)), colour)
			})
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "tail-gc-light.svg"))
	require.NoError(t, err)
	require.Contains(t, readXML(t, string(svg)), "1 µs", "times on the axis have a unit")
}

// readXML returns the text in a document, which must be well formed.
func readXML(t *testing.T, doc string) string {
	var text strings.Builder
	for dec := xml.NewDecoder(strings.NewReader(doc)); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		require.NoError(t, err)
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
}

func TestNothingMeasuredIsNoPicture(t *testing.T) {
	files, err := picture.Draw(report.Summarize(nil), t.TempDir())
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestADirectoryThatIsMissingIsTold(t *testing.T) {
	_, err := picture.Draw(report.Summarize(rows()), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
