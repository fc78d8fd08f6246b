package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// TestMain lets the fleet start this test binary as one of its servers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" {
		main()
		return
	}
	os.Exit(m.Run())
}

// call runs the program with flags that are separated by spaces.
func call(t *testing.T, flags string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), strings.Fields(flags), &out, &errs)
	return code, out.String(), errs.String()
}

// line returns the number in a line of the report.
func line(t *testing.T, report, label string) (number, rest string) {
	t.Helper()
	for l := range strings.Lines(report) {
		if after, ok := strings.CutPrefix(strings.TrimSpace(l), label+" "); ok {
			number, rest, _ = strings.Cut(strings.TrimSpace(after), " ")
			return number, strings.TrimSpace(rest)
		}
	}
	require.Fail(t, "no such line", "%q in\n%s", label, report)
	return "", ""
}

// TestFleet runs the program as a person would, but for a smaller number of orders.
func TestFleet(t *testing.T) {
	small := " -orders 60 -customers 12 -lease 2s"
	t.Run("charges once with Postgres", func(t *testing.T) {
		t.Parallel()
		code, report, stderr := call(t, "-store postgres"+small)
		require.Equal(t, exitOK, code, report+stderr)
		n, _ := line(t, report, "charged once")
		require.Equal(t, "60", n)
		_, orders := line(t, report, "after a rollback")
		require.Contains(t, orders, "order-", "the one during which the server was killed")
		n, _ = line(t, report, "promises broken")
		require.Equal(t, "0", n)
	})
	t.Run("names what was taken over with Redis", func(t *testing.T) {
		t.Parallel()
		code, report, stderr := call(t, "-store redis"+small)
		require.Equal(t, exitOK, code, report+stderr)
		n, orders := line(t, report, "taken over")
		require.NotEqual(t, "0", n, report)
		require.Contains(t, orders, "order-")
		n, _ = line(t, report, "unknown")
		require.Equal(t, "0", n)
	})
	for _, store := range []string{redisStore, postgresStore} {
		t.Run("names what is unknown under Hold with "+store, func(t *testing.T) {
			t.Parallel()
			code, report, stderr := call(t, "-policy hold -store "+store+small)
			require.Equal(t, exitOK, code, report+stderr)
			_, verdict, _ := strings.Cut(report, "charged once")
			n, orders := line(t, verdict, "unknown")
			require.NotEqual(t, "0", n, report)
			require.Contains(t, orders, "order-")
			n, _ = line(t, report, "taken over")
			require.Equal(t, "0", n)
		})
	}
	t.Run("fails when the servers do not share their records", func(t *testing.T) {
		t.Parallel()
		var stdout, stderr bytes.Buffer
		f := fleet{
			setup:  setup{Store: redisStore, Lease: 2 * time.Second},
			orders: 20, customers: 4, stdout: &stdout, stderr: &stderr, apart: true,
		}
		err := f.run(t.Context())
		require.ErrorContains(t, err, "by one server and")
		require.ErrorContains(t, err, "by another")
		require.Equal(t, exitFailed, exitCode(err, &stderr))
	})
	t.Run("ends when it is interrupted", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitInterrupted, run(ctx, strings.Fields("-store redis"+small), &stdout, &stderr))
		require.Equal(t, "fleet: interrupted\n", stderr.String())
	})
}

// TestBadURL has servers that are not there and variables that name none.
func TestBadURL(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	for name, c := range map[string]struct{ variable, value, flags, want string }{
		"nobody answers":  {"REDIS_URL", "redis://" + free.Addr().String(), "-store redis", "fleet: REDIS_URL: redisstore: lookup: "},
		"no Redis URL":    {"REDIS_URL", "foo", "-store redis", "fleet: REDIS_URL: redis: invalid URL scheme"},
		"no Postgres URL": {"DATABASE_URL", "foo", "-store postgres", "fleet: DATABASE_URL: cannot parse"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			code, stdout, stderr := call(t, c.flags)
			require.Equal(t, exitFailed, code)
			require.Empty(t, stdout)
			require.Contains(t, stderr, c.want)
		})
	}
}

func TestFlags(t *testing.T) {
	t.Run("help is for stdout", func(t *testing.T) {
		code, stdout, stderr := call(t, "-h")
		require.Equal(t, exitOK, code)
		require.Empty(t, stderr)
		for _, flag := range []string{"-store", "-policy", "-orders", "-customers", "-lease"} {
			require.Contains(t, stdout, flag)
		}
		require.Contains(t, stdout, "(default takeover)")
		require.Contains(t, stdout, "-lease duration")
	})
	for flags, want := range map[string]string{
		"-store mysql":   `invalid value "mysql" for flag -store: must be redis or postgres`,
		"-policy no":     `invalid value "no" for flag -policy: must be takeover or hold`,
		"-orders 59":     `invalid value "59" for flag -orders: must be a whole number from 60 to 20000`,
		"-orders many":   `invalid value "many" for flag -orders: must be a whole number from 60 to 20000`,
		"-customers 201": `invalid value "201" for flag -customers: must be a whole number from 1 to 200`,
		"-lease 10":      `invalid value "10" for flag -lease: must be a duration from 1s to 1m0s, such as 2s`,
		"-speed 1":       `flag provided but not defined: -speed`,
		"redis":          `unexpected argument "redis"`,
	} {
		t.Run("bad: "+flags, func(t *testing.T) {
			code, stdout, stderr := call(t, flags)
			require.Equal(t, exitUsage, code)
			require.Empty(t, stdout)
			require.Equal(t, "fleet: "+want+"; allowed are -store, -policy, -orders, -customers and -lease, which -h explains\n", stderr)
		})
	}
	t.Run("a server is told in JSON", func(t *testing.T) {
		code, _, stderr := call(t, "-serve {")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "flag -serve")
	})
}

// TestAudit judges accounts that a store which keeps its promises never has, among others.
func TestAudit(t *testing.T) {
	const dead = "b"
	done := account{found: true, record: idem.Record{State: idem.Replay, Token: 2}}
	unknown := account{found: true, record: idem.Record{State: idem.Unknown, Token: 1}}
	byDead, byLiving := charge{"o", dead, 1}, charge{"o", "c", 2}
	once, twice, held := promise{}, promise{chargedTwice: true}, promise{unknown: true}
	with := func(a account, charges ...charge) account {
		a.charges, a.tries = charges, charges
		return a
	}
	tried := func(a account, tries ...charge) account {
		a.tries = append(a.tries, tries...)
		return a
	}
	for name, c := range map[string]struct {
		account account
		allowed promise
		want    audit
	}{
		"charged once":               {with(done, byLiving), once, audit{once: []string{"o"}}},
		"charged once by the dead":   {with(done, charge{"o", dead, 2}), once, audit{once: []string{"o"}}},
		"rolled back and done again": {tried(with(done, byLiving), byDead), once, audit{once: []string{"o"}, rolledBack: []string{"o"}}},
		"taken over":                 {with(done, byDead, byLiving), twice, audit{takenOver: []string{"o"}}},
		"taken over, but not to be":  {with(done, byDead, byLiving), once, audit{broken: []string{"o was charged by the server that died and again"}}},
		"under Hold, charged again":  {with(done, byDead, byLiving), held, audit{broken: []string{"o was charged by the server that died and again"}}},
		"unknown":                    {with(unknown, byDead), held, audit{unknown: []string{"o"}}},
		"unknown and not charged":    {unknown, held, audit{unknown: []string{"o"}}},
		"unknown, but not to be":     {with(unknown, byDead), twice, audit{broken: []string{"o is unknown"}}},
		"unknown, but it lives":      {with(unknown, charge{"o", "c", 1}), held, audit{broken: []string{"o is unknown though its server lives"}}},
		"charged twice by living":    {with(done, byLiving, charge{"o", "a", 3}), twice, audit{broken: []string{"o was charged 2 times"}}},
		"charged twice, one token":   {with(done, byLiving, byLiving), twice, audit{broken: []string{"o was charged 2 times"}}},
		"charged twice by the dead":  {with(done, byDead, charge{"o", dead, 0}, byLiving), twice, audit{broken: []string{"o was charged 3 times"}}},
		"recorded, not charged":      {with(done), once, audit{broken: []string{"o was recorded but not charged"}}},
		"charged, not recorded":      {with(account{}, byLiving), once, audit{broken: []string{"o has no result"}}},
		"still in progress":          {account{found: true, record: idem.Record{State: idem.InProgress}}, held, audit{broken: []string{"o has no result"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var a audit
			a.add("o", c.account, dead, c.allowed)
			require.Equal(t, c.want, a)
		})
	}
}

func TestReportSaysWhatIsBroken(t *testing.T) {
	var stdout bytes.Buffer
	f := fleet{setup: setup{Store: redisStore}, orders: 2, stdout: &stdout}
	err := f.report(newCustomers(nil, 1), audit{once: []string{"order-1"}, broken: []string{"order-2 was charged 2 times"}})
	require.EqualError(t, err, "1 promises were broken")
	require.Equal(t, exitFailed, exitCode(err, io.Discard))
	n, rest := line(t, stdout.String(), "promises broken")
	require.Equal(t, "1", n)
	require.Equal(t, "order-2 was charged 2 times", rest)
}

func TestListedIsShort(t *testing.T) {
	require.Empty(t, listed(nil))
	require.Equal(t, "a, b", listed([]string{"a", "b"}))
	require.True(t, strings.HasSuffix(listed(make([]string, 100)), "and 88 more"))
}
