package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// firstLines is what the README and the first seconds with the demo promise, to the byte.
const firstLines = "first request: fresh\n" +
	"duplicate while running: in progress\n" +
	"replay: 201 {\"id\":1}\n"

// TestDemo runs what somebody sees who types nothing but "go run ./cmd/idemdemo", with fewer orders.
func TestDemo(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"-orders", "20", "-clients", "4"}, &stdout, &stderr)

	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)
	require.True(t, strings.HasPrefix(stdout.String(), firstLines), "%s", &stdout)
	require.Regexp(t, `(?m)^  charges made +20  `, stdout.String())
	require.Empty(t, stderr.String())
	require.NotContains(t, stdout.String(), "\x1b", "escape codes are for terminals")
}

// TestDemoInterrupted is Ctrl-C before anything has happened; TestStorm interrupts in the middle.
func TestDemoInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer

	require.Equal(t, exitInterrupted, run(ctx, nil, &stdout, &stderr))
	require.Equal(t, "idemdemo: interrupted\n", stderr.String())
}

// TestHelp asks each command for help, which is an answer and not an error.
func TestHelp(t *testing.T) {
	for want, args := range map[string][]string{
		"usage: idemdemo [flags]":       {"-h"},
		"-orders":                       {"--help"},
		"idemdemo serve":                {"-help"},
		"usage: idemdemo serve [flags]": {"serve", "-h"},
		"usage: idemdemo load [flags]":  {"load", "-h"},
		"-wait duration":                {"serve", "-h"},
		"-patience duration":            {"load", "-h"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitOK, run(t.Context(), args, &stdout, &stderr))
		require.Contains(t, stdout.String(), want)
		require.Empty(t, stderr.String())
	}
}

// TestBadArguments wants every mistake to be told what would have been right, before anything runs.
func TestBadArguments(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string // what the message says is allowed
	}{
		{"unknown flag", []string{"-order", "3"}, "allowed: -clients, -orders, -seed"},
		{"no orders", []string{"-orders", "0"}, "whole number from 1 to 20000"},
		{"too many orders", []string{"-orders", "20001"}, "whole number from 1 to 20000"},
		{"too many clients", []string{"-clients", "101"}, "whole number from 1 to 100"},
		{"not a number", []string{"-clients", "many"}, "whole number from 1 to 100"},
		{"negative seed", []string{"-seed", "-1"}, "allowed: -clients, -orders, -seed"},
		{"flag without a value", []string{"-seed"}, "allowed: -clients, -orders, -seed"},
		{"argument after the flags", []string{"-seed", "1", "more"}, `unexpected argument "more"`},
		{"unknown command", []string{"storm"}, "the commands are serve and load"},
		{"address without a port", []string{"serve", "-addr", "localhost"}, "must be host:port"},
		{"address with a port too high", []string{"serve", "-addr", "127.0.0.1:99999"}, "with a port from 0 to 65535"},
		{"address with a port below zero", []string{"serve", "-addr", "127.0.0.1:-1"}, "with a port from 0 to 65535"},
		{"wait too long", []string{"serve", "-wait", "61s"}, "from 0s to 1m0s"},
		{"flag of another command", []string{"load", "-orders", "3"}, "allowed: -copies, -patience, -payments, -remote, -url"},
		{"no patience", []string{"load", "-patience", "0"}, "from 1ms to 1m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, exitUsage, run(t.Context(), c.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), c.want)
			require.Empty(t, stdout.String(), "nothing may run")
		})
	}
}

// TestExitCode is what CI goes by.
func TestExitCode(t *testing.T) {
	var stderr bytes.Buffer
	require.Equal(t, exitOK, exitCode(nil, &stderr))
	require.Empty(t, stderr.String())
	require.Equal(t, exitFailed, exitCode(errors.New("charged twice"), &stderr))
	require.Equal(t, "idemdemo: charged twice\n", stderr.String())
}
