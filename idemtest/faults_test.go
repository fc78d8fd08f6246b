package idemtest_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// A fault is something that stores get wrong.
type fault struct {
	name   string
	row    string                 // that names it
	also   []string               // rows that may see it, too
	config func(*idemtest.Config) // settings that are ignored
	inject func(b *broken, cfg idemtest.Config)
}

func faults() []fault {
	return slices.Concat(claimFaults(), keyFaults(), replayFaults(), lifeFaults(), leaseFaults(), holdFaults(),
		ownerFaults(), waitFaults(), crowdFaults(), tokenFaults(), limitFaults(), roomFaults(), inspectFaults(), closeFaults(),
		recordFaults(), handOverFaults(), raceFaults(), operatorFaults())
}

// TestFaultsAreSeen proves the suite: each fault fails the row that names it, in whatever store it is.
func TestFaultsAreSeen(t *testing.T) {
	for name, m := range map[string]idemtest.Maker{"reference": references(), "engine": engines()} {
		for _, f := range faults() {
			rows := slices.DeleteFunc(idemtest.Rows(), func(row idemtest.Row) bool { return row.Name != f.row })
			t.Run(name+"/"+f.name, func(t *testing.T) {
				require.Contains(t, failed(t, withFault(f, m), rows...), f.row)
			})
		}
	}
}

// TestHeavyFaultsAreToldApart shows that a fault fails no row that is about something else.
func TestHeavyFaultsAreToldApart(t *testing.T) {
	for name, m := range map[string]idemtest.Maker{"reference": references(), "engine": engines()} {
		for _, f := range faults() {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				for row, log := range failed(t, withFault(f, m)) {
					if row != f.row && !slices.Contains(f.also, row) {
						t.Errorf("%s should not fail:\n%s", row, log)
					}
				}
			})
		}
	}
}

// TestEveryRowSeesSomething: a row that no fault fails proves nothing.
func TestEveryRowSeesSomething(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range faults() {
		seen[f.row] = true
	}
	for _, row := range idemtest.Rows() {
		require.True(t, seen[row.Name], "no fault for the row %q", row.Name)
		require.NotEmpty(t, row.Explanation)
	}
}

// withFault makes the stores of m with a fault around them.
func withFault(f fault, m idemtest.Maker) idemtest.Maker {
	return idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		if f.config != nil {
			f.config(&cfg)
		}
		s, ok := m.New(tb, cfg).(whole)
		require.True(tb, ok)
		b := newBroken(s)
		if f.inject != nil {
			f.inject(b, cfg)
		}
		return b
	}}
}
