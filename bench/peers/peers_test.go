package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be a rival's process too, as the command is.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		exit(serve(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func TestTinyRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	var out bytes.Buffer
	workloads := "replay,hot,zipf,wait,memory,gc,growth,tail-gc"
	args := []string{"-keys", "1000", "-passes", "2", "-block", "1ms", "-rivals", "mutex+map,freecache", "-workloads", workloads, "-out", dir}
	require.NoError(t, peers(t.Context(), args, &out, false))
	require.Contains(t, out.String(), "3 rivals, about")
	require.Contains(t, out.String(), "done after")

	raw, err := os.ReadFile(filepath.Join(dir, rawFile))
	require.NoError(t, err)
	rows, err := report.Read(bytes.NewReader(raw))
	require.NoError(t, err)
	count := map[string]int{}
	for _, row := range rows {
		count[row.Rival+" "+row.Workload]++
		require.NotEmpty(t, row.Values)
	}
	for _, r := range []string{"idem", "mutex+map", "freecache"} {
		for workload, n := range map[string]int{"replay": 6, "hot": 6, "zipf": 4, "memory": 2, "gc": 2, "growth": 15, "tail-gc": 2} {
			require.Equal(t, n, count[r+" "+workload], "%s %s", r, workload)
		}
	}
	require.Equal(t, 2, count["idem wait"])
	require.Equal(t, 0, count["freecache wait"])

	page, err := os.ReadFile(filepath.Join(dir, tablesFile))
	require.NoError(t, err)
	require.Contains(t, string(page), "| mutex+map | Go's own |")
	require.Contains(t, string(page), "## Slowest replays while the collector runs")
	require.FileExists(t, filepath.Join(dir, "overview-dark.svg"))

	t.Run("and rendered again it is the same", func(t *testing.T) {
		require.NoError(t, peers(t.Context(), []string{"-render", "-out", dir}, io.Discard, false))
		again, err := os.ReadFile(filepath.Join(dir, tablesFile))
		require.NoError(t, err)
		require.Equal(t, string(page), string(again))
	})
}

func TestWrongFlagsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"workload":    {[]string{"-workloads", "nap"}, `unknown workload "nap": choose from replay,`},
		"rival":       {[]string{"-rivals", "redis"}, `unknown rival "redis": choose from idem,`},
		"passes":      {[]string{"-passes", "0"}, "-passes is 0: it must be 1 to 100"},
		"keys":        {[]string{"-keys", "10"}, "-keys is 10: it must be 1000 to 10000000"},
		"block":       {[]string{"-block", "1m"}, "-block is 1m0s: it must be 1ms to 10s"},
		"flag":        {[]string{"-fast"}, "-fast"},
		"argument":    {[]string{"replay"}, `unexpected argument "replay"`},
		"no raw data": {[]string{"-render", "-out", "nowhere"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, peers(t.Context(), c.args, io.Discard, false), c.want)
		})
	}
}

func TestHelpNamesAll(t *testing.T) {
	var out bytes.Buffer
	require.Error(t, peers(t.Context(), []string{"-h"}, &out, false))
	for _, w := range report.Workloads {
		require.Contains(t, out.String(), w.About)
	}
	for _, r := range rival.All() {
		require.Contains(t, out.String(), r.Claim)
	}
}

func TestServeAnswersLineByLine(t *testing.T) {
	in := strings.NewReader(`{"do":"fill"}
{"do":"open","rival":"nobody"}
{"do":"open","rival":"idem","records":1000}
{"do":"sing"}
{"do":"fill","records":100}
{"do":"block","workload":"replay","goroutines":1,"duration":1000}
`)
	var out bytes.Buffer
	require.NoError(t, serve(in, &out))
	var errs []string
	var last reply
	for dec := json.NewDecoder(&out); dec.More(); {
		last = reply{}
		require.NoError(t, dec.Decode(&last))
		errs = append(errs, last.Error)
	}
	require.Equal(t, []string{
		`"fill" before a store was opened`, `unknown rival "nobody"`, "", `unknown command "sing"`, "", "",
	}, errs)
	require.Positive(t, last.Values["ns/op"])

	require.ErrorContains(t, serve(strings.NewReader("block"), io.Discard), "command")
}

func startIdem(t *testing.T) *process {
	p, err := start(t.Context(), "idem")
	require.NoError(t, err)
	t.Cleanup(func() { p.end() })
	return p
}

func TestProcess(t *testing.T) {
	t.Run("an error does not end it", func(t *testing.T) {
		p := startIdem(t)
		_, err := p.call(command{Do: "settle"}, time.Minute)
		require.ErrorContains(t, err, `settle: "settle" before a store was opened`)
		_, err = p.call(command{Do: "open", Records: 1000}, time.Minute)
		require.NoError(t, err)
	})
	t.Run("what it says on its way down is told", func(t *testing.T) {
		p := startIdem(t)
		_, err := p.call(command{Do: "open", Records: 1000}, time.Minute)
		require.NoError(t, err)
		_, err = p.call(command{Do: "block", Workload: "replay", Goroutines: 1}, time.Minute) // of no live keys
		require.ErrorContains(t, err, "the process ended")
		require.ErrorContains(t, err, "panic")
	})
	t.Run("one that takes too long is ended", func(t *testing.T) {
		p := startIdem(t)
		_, err := p.call(command{Do: "check"}, 10*time.Millisecond)
		require.ErrorContains(t, err, "check took over 10ms")
	})
	t.Run("it ends with the context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p, err := start(ctx, "idem")
		require.NoError(t, err)
		cancel()
		_, err = p.call(command{Do: "check"}, time.Minute)
		require.Error(t, err)
	})
}

func TestARivalThatFailsIsLeftOut(t *testing.T) {
	o, err := parse([]string{"-rivals", "otter"}, io.Discard)
	require.NoError(t, err)
	var out bytes.Buffer
	r := newRun(o.config, newProgress(&out, false))
	require.NoError(t, r.errs())
	r.fail("otter", io.ErrUnexpectedEOF)
	require.Len(t, r.standing(), 1)
	require.ErrorIs(t, r.errs(), io.ErrUnexpectedEOF)
	require.Contains(t, out.String(), "left out: ")
}

func TestARunNeedsIdem(t *testing.T) {
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	r := newRun(o.config, newProgress(io.Discard, false))
	r.rivals = nil
	r.fail(report.Baseline, io.ErrUnexpectedEOF)
	require.ErrorIs(t, r.measure(t.Context()), io.ErrUnexpectedEOF)
}

func TestWaitersAreThoseThatCan(t *testing.T) {
	for _, r := range rival.All() {
		s, err := r.Open(rival.Options{Records: 1000, TTL: time.Hour})
		require.NoError(t, err)
		_, can := s.(rival.Waiter)
		require.Equal(t, canWait[r.Name], can, r.Name)
		s.Close()
	}
}

func TestDefaultRunIsBounded(t *testing.T) {
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	r := newRun(o.config, newProgress(io.Discard, false))
	require.LessOrEqual(t, r.estimate(), 12*time.Minute)
	require.Equal(t, []int{10_000, 100_000, 1_000_000, 5_000_000, 10_000_000}, r.sizes())
	t.Run("and memory that is missing is told", func(t *testing.T) {
		r.keys = 1 << 40
		require.ErrorContains(t, r.checkMemory(), "choose fewer -keys")
	})
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, true)
	p.expect(10 * time.Second)
	p.end(4 * time.Second)
	p.begin("filling otter")
	require.Equal(t, "\r\x1b[K 40 %, 0s: filling otter", out.String())

	out.Reset()
	p = newProgress(&out, false)
	p.begin("one")
	p.begin("two, at once")
	require.Equal(t, "  0 %, 0s: one\n", out.String(), "a file is not filled with lines")
}

func TestVersionsComeFromTheBinary(t *testing.T) {
	info := &debug.BuildInfo{Deps: []*debug.Module{
		{Path: "example.com/cache", Version: "v1.2.3"},
		{Path: "example.com/idem", Version: "v0.0.0", Replace: &debug.Module{Path: "../"}},
	}}
	require.Equal(t, "v1.2.3", version(info, "example.com/cache"))
	require.Equal(t, "this checkout", version(info, "example.com/idem"))
	require.Equal(t, "unknown", version(info, "example.com/other"))
}
