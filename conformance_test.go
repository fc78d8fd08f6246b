package idem_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/idemtest"
)

// engineMaker makes the engines that the conformance suite asks for, under both policies.
func engineMaker() idemtest.Maker {
	return idemtest.Maker{New: func(tb testing.TB, cfg idemtest.Config) idem.Store {
		tb.Helper()
		e, err := idem.New(idem.Config{
			TTL:              cfg.TTL,
			Lease:            cfg.Lease,
			OnLeaseExpiry:    cfg.OnLeaseExpiry,
			MaxKeyBytes:      cfg.MaxKeyBytes,
			MaxResponseBytes: cfg.MaxResponseBytes,
			MaxRecords:       cfg.MaxRecords,
			MaxWaiters:       cfg.MaxWaiters,
			MaxWaitersPerKey: cfg.MaxWaitersPerKey,
		})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, e.Close()) })
		return e
	}}
}

// TestConformance takes time as it is, so that timers fire a little late and calls meet by chance.
func TestConformance(t *testing.T) { idemtest.Run(t, engineMaker()) }

// TestConformanceToTheNanosecond looks at every end of a lease or TTL from just before, at it and after.
func TestConformanceToTheNanosecond(t *testing.T) {
	for _, row := range idemtest.Rows() {
		t.Run(row.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { row.Run(t, engineMaker()) })
		})
	}
}
