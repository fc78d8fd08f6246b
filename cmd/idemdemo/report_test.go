package main

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
}

// TestProgress makes sure above all that nothing but text ends up in a pipe.
func TestProgress(t *testing.T) {
	t.Run("nothing is written to a pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer func() { _ = r.Close() }()
		showProgress(w, func() string { return "line" })()
		require.NoError(t, w.Close())
		n, _ := r.Read(make([]byte, 1))
		require.Zero(t, n)
	})

	t.Run("a line is rewritten in place and wiped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			var n atomic.Int64
			stop := animate(&out, func() string { return string(rune('a' + n.Add(1) - 1)) })
			time.Sleep(150 * time.Millisecond)
			stop()
			require.Equal(t, "\ra\x1b[K\rb\x1b[K\r\x1b[K", out.String())
		})
	})

	t.Run("a character device is a terminal, unless it is dumb", func(t *testing.T) {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		require.NoError(t, err)
		defer func() { _ = null.Close() }()
		t.Setenv("TERM", "xterm")
		require.True(t, isTerminal(null))
		t.Setenv("TERM", "dumb")
		require.False(t, isTerminal(null))
		require.False(t, isTerminal(&bytes.Buffer{}))
	})
}
