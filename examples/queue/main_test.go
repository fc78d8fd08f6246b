package main

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rows runs the program and returns its exit status and its table.
func rows(t *testing.T, args ...string) (int, map[string]int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	require.NotEqual(t, 2, code, stderr.String())
	table := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^ *(\w[a-z ]+\w)  +(\d+) *$`).FindAllStringSubmatch(stdout.String(), -1) {
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		table[m[1]] = n
	}
	return code, table
}

func TestEveryPaymentIsMadeOnce(t *testing.T) {
	const n = 600
	code, got := rows(t, "-payments", strconv.Itoa(n), "-twice", "0.5", "-kill", "200ms", "-timeout", "1m")
	require.Zero(t, code, got)
	require.Equal(t, n, got["bills"])
	require.Equal(t, n+n/2, got["messages published"])
	require.Equal(t, n, got["payments made"]+got["bills refused for good"])
	require.Equal(t, 2, got["bills refused for good"])
	require.GreaterOrEqual(t, got["dead letters"], got["bills refused for good"])
	require.Greater(t, got["deliveries"], n+n/2)
	require.Greater(t, got["runs of the handler"], n)
	require.Greater(t, got["duplicates skipped"], n/4, "a few were left to the broker by consumers that were killed")
	require.Positive(t, got["consumers killed"])
	require.Zero(t, got["payments lost"]+got["payments made twice"])
}

func TestHeavyTenThousandPayments(t *testing.T) {
	code, got := rows(t)
	require.Zero(t, code, got)
	require.Equal(t, 10_000, got["payments made"]+got["bills refused for good"])
	require.Greater(t, got["duplicates skipped"], 900)
}

func TestWithoutIdemItIsNot(t *testing.T) {
	code, got := rows(t, "-payments", "300", "-twice", "0.5", "-kill", "0", "-unguarded", "-timeout", "1m")
	require.Equal(t, 1, code)
	require.GreaterOrEqual(t, got["payments made twice"], 140)
}

func TestPaymentAndItsRecordAreOne(t *testing.T) {
	b := newBank()
	require.ErrorIs(t, b.pay("bill-1", func() error { return errKilled }), errKilled)
	require.Zero(t, b.settled(), "it was not recorded, so it was not made")
	require.NoError(t, b.pay("bill-1", func() error { return nil }))
	require.Equal(t, map[string]int{"bill-1": 1}, b.paid)
}

func TestFlags(t *testing.T) {
	for args, says := range map[string]string{
		"-payments 0":   "-payments is 0, want 1 to 1000000",
		"-twice 2":      "-twice is 2, want 0 to 1",
		"-consumers 0":  "-consumers is 0",
		"-workers 0":    "-workers is 0",
		"-kill -1s":     "-kill is -1s",
		"-timeout 0":    "-timeout is 0s",
		"more":          `unexpected argument "more"`,
		"-payments x":   "invalid value",
		"-nonsense":     "not defined",
		"-timeout 50ms": "not done after 50ms, see -timeout",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), strings.Fields("-timeout 20s "+args), &stdout, &stderr), args)
		require.Contains(t, stderr.String(), says)
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "Usage: queue [flags]")
	for _, named := range []string{"-payments number", "-consumers number", "-workers number", "-kill duration"} {
		require.Contains(t, stderr.String(), named)
	}
}

func TestInterruptEndsIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 130, run(ctx, nil, &stdout, &stderr))
	require.Contains(t, stderr.String(), "interrupted")
}
