package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachPaymentIsMadeAndAnnouncedOnce(t *testing.T) {
	r, err := demonstrate(t.Context(), options{payments: 300, workers: 8})
	require.NoError(t, err)
	require.True(t, r.ok(), "%+v", r)
	require.Equal(t, 450, r.published)
	require.Positive(t, r.rolledBack)
	require.Positive(t, r.forgotten)
	require.Equal(t, 300+r.rolledBack, r.runs, "what was committed is not run again")
	require.GreaterOrEqual(t, r.skipped, r.published-300)
	require.Equal(t, r.published+r.rolledBack+r.forgotten, r.deliveries)
}

func TestReport(t *testing.T) {
	good := report{ordered: 2, payments: 2, distinct: 2, announced: 2}
	require.True(t, good.ok())
	for name, bad := range map[string]report{
		"lost":            {ordered: 2, payments: 1, distinct: 1, announced: 1},
		"twice":           {ordered: 2, payments: 3, distinct: 2, announced: 3},
		"one for another": {ordered: 2, payments: 2, distinct: 1, announced: 2},
		"not announced":   {ordered: 2, payments: 2, distinct: 2, announced: 1},
		"wrongly so":      {ordered: 2, payments: 2, distinct: 2, announced: 2, other: 1},
	} {
		require.False(t, bad.ok(), name)
	}
	var out bytes.Buffer
	good.print(&out)
	require.Contains(t, out.String(), "payments made  2")
}

func TestFlags(t *testing.T) {
	for args, says := range map[string]string{
		"-h":           "Usage: inbox",
		"-payments 0":  "-payments is 0, want 1 to 1000000",
		"-workers 0":   "-workers is 0, want 1 to 1000",
		"-timeout -1s": "-timeout is -1s, want more than 0",
		"now":          `unexpected argument "now"`,
		"-x":           "flag provided but not defined: -x",
		"-timeout 1ms": "inbox: not done after 1ms, see -timeout",
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		require.Equal(t, args != "-h", code == 2, args)
		require.Contains(t, stderr.String(), says)
		require.Empty(t, stdout.String())
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "-payments number")
	require.Contains(t, stderr.String(), "-workers number")
}

func TestInterruptEndsIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 130, run(ctx, nil, &stdout, &stderr))
	require.Equal(t, "inbox: interrupted\n", stderr.String())
}

func TestBadURL(t *testing.T) {
	t.Setenv("DATABASE_URL", "foo")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 2, run(t.Context(), nil, &stdout, &stderr))
	require.Contains(t, stderr.String(), "inbox: DATABASE_URL: cannot parse")
}
