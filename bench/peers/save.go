package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/picture"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// The files of a run, in its directory: raw data and machine are what was measured, the rest is made of them.
const (
	rawFile     = "raw.jsonl"
	machineFile = "machine.json"
	tablesFile  = "README.md"
)

// save writes what was measured, and what is made of it.
func save(dir string, m machine, rows []report.Row) error {
	var raw bytes.Buffer
	if err := report.Write(&raw, rows); err != nil {
		return err
	}
	about, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, rawFile), raw.Bytes(), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, machineFile), append(about, '\n'), 0o644); err != nil {
		return err
	}
	return render(dir)
}

// render makes tables and pictures of what save wrote.
func render(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, rawFile))
	if err != nil {
		return err
	}
	rows, err := report.Read(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("%s: %w", rawFile, err)
	}
	about, err := os.ReadFile(filepath.Join(dir, machineFile))
	if err != nil {
		return err
	}
	var m machine
	if err = json.Unmarshal(about, &m); err != nil {
		return fmt.Errorf("%s: %w", machineFile, err)
	}
	summary := report.Summarize(rows)
	pictures, err := picture.Draw(summary, dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, tablesFile), []byte(tables(m, summary, pictures)), 0o644)
}

// tables is the page of a run.
func tables(m machine, s *report.Summary, pictures []picture.File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results\n\nMade by `make bench-peers` (`%s`), %s.\n\n", m.Command, m.Time)
	fmt.Fprintf(&b, "%d cores, %s, %s, %s, commit %s; load as the run began: %s.\n\n", m.Cores, m.CPU, m.System, m.Go, m.Commit, m.Load)
	b.WriteString("Medians over the passes; in brackets the median of each pass's ratio to idem: above 1, idem is faster or\n" +
		"smaller. What is measured how, and what is not, is in [the page above](../README.md).\n\n")
	for _, p := range pictures {
		b.WriteString(p.Markdown())
	}
	b.WriteString("## Rivals\n\n|   | version | claim made atomic by | to know |\n| - | - | - | - |\n")
	for _, r := range rival.All() {
		version := m.Versions[r.Name]
		if r.Module == "" {
			version = "Go's own"
		}
		if version != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Name, version, r.Claim, r.Marks())
		}
	}
	fmt.Fprintf(&b, "\n%s", s.Tables())
	return strings.TrimRight(b.String(), "\n") + "\n"
}
