package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPrintTable has a label with a character of two bytes, which must count as one.
func TestPrintTable(t *testing.T) {
	var out bytes.Buffer
	printTable(&out, []row{{"requests", "12,345", "in 1.2 s"}, {"p50 / p99 × 2", "7", ""}})
	require.Equal(t, "  requests       12,345  in 1.2 s\n  p50 / p99 × 2       7\n", out.String())
}

// TestGrouped goes to both sides of every new comma, and below zero.
func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{
		0: "0", 999: "999", 1000: "1,000", 12345: "12,345", 1234567: "1,234,567", -999: "-999", -1000: "-1,000",
	} {
		require.Equal(t, want, grouped(n))
	}
}

// TestPercentile starts with the sizes at which an index is easily off by one.
func TestPercentile(t *testing.T) {
	require.Zero(t, percentile(nil, 50))
	require.EqualValues(t, 7, percentile([]time.Duration{7}, 99))
	require.EqualValues(t, 2, percentile([]time.Duration{3, 1, 2, 4}, 50))
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	require.EqualValues(t, 99, percentile(hundred, 99))
	require.EqualValues(t, 100, percentile(hundred, 100))
	require.Equal(t, "0.0 ms / 0.0 ms", quantiles(hundred))
	require.Equal(t, "-", quantiles(nil), "nothing was measured")
}
