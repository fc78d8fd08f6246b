// Package testserver gives tests the servers that they need: it finds their programs, or installs them, and
// runs them as child processes that end with the test.
package testserver

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// installTimeout is for a slow mirror; a test binary may take ten minutes in all.
const installTimeout = 8 * time.Minute

// places are where packages put servers that are not meant for everybody's PATH: patterns for
// [filepath.Glob], the better ones first.
var places = []string{
	"/usr/lib/postgresql/*/bin", // Debian
	"/usr/pgsql-*/bin",          // Red Hat
	"/opt/homebrew/bin",         // Homebrew on ARM
	"/opt/homebrew/opt/*/bin",   // formulas that are not linked, such as postgresql@17
	"/usr/local/opt/*/bin",      // the same on Intel
	"/usr/local/bin",            // a PATH may lack even these
	"/usr/local/sbin",
	"/usr/bin",
	"/usr/sbin",
}

//go:embed install.sh
var installScript string

// Binary returns the path of the program name. It looks on the PATH and then where packages put it; of several
// versions it takes the highest. If there is none, it installs the Debian package deb or the Homebrew
// formula brew, which takes a minute and, for Debian, needs root or a sudo that asks for no password. The error
// is one line that says what to do.
func Binary(name, deb, brew string) (string, error) {
	if path, ok := find(name); ok {
		return path, nil
	}
	install, advice, err := installer(deb, brew)
	if err != nil {
		return "", fmt.Errorf("testserver: there is no %s on this machine, %w: %s", name, err, advice)
	}
	unlock, err := lock()
	if err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	defer unlock()
	// Another test process may have installed it while this one waited for the lock.
	if path, ok := find(name); ok {
		return path, nil
	}
	fmt.Fprintf(os.Stderr, "testserver: there is no %s on this machine; installing it: %s\n", name, advice)
	if err := run(install); err != nil {
		return "", fmt.Errorf("testserver: there is no %s on this machine, and to install it failed (%w): %s", name, err, advice)
	}
	if path, ok := find(name); ok {
		return path, nil
	}
	return "", fmt.Errorf("testserver: there is no %s on this machine, not even after %s", name, advice)
}

// find looks for the program without installing anything.
func find(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	for _, place := range places {
		found, err := filepath.Glob(filepath.Join(place, name))
		if err != nil {
			continue // no pattern of ours is malformed, but name may be
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		for _, path := range found {
			if _, err := exec.LookPath(path); err == nil {
				return path, true
			}
		}
	}
	return "", false
}

// version is the first number in a path, or zero: 17 of /usr/lib/postgresql/17/bin/postgres.
func version(path string) int {
	digits := strings.FieldsFunc(path, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, err := strconv.Atoi(digits[0])
	if err != nil {
		return 0
	}
	return n
}

var (
	errNoInstaller = errors.New("and neither apt-get nor brew to install it with")
	errNotRoot     = errors.New("and only root can install it")
)

// installer returns the command that installs a package here, and what a person would type instead.
func installer(deb, brew string) (command []string, advice string, err error) {
	if path, err := exec.LookPath("brew"); err == nil {
		return []string{path, "install", "--quiet", brew}, "brew install " + brew, nil
	}
	advice = "sudo apt-get install " + deb
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Sprintf("install what Debian calls %s and Homebrew %s", deb, brew), errNoInstaller
	}
	command = []string{"sh", "-c", installScript, "sh", deb}
	if os.Getuid() == 0 {
		return command, advice, nil
	}
	if run([]string{"sudo", "-n", "true"}) != nil {
		return nil, advice, errNotRoot
	}
	return append([]string{"sudo", "-n"}, command...), advice, nil
}

// run runs a command and returns the end of its output with the error.
func run(command []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = stopTimeout
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(output.String()), "\n")
	return fmt.Errorf("%w: %s", err, strings.Join(lines[max(0, len(lines)-3):], "; "))
}

// FreePort returns a TCP port of the loopback interface that nobody listens on. Another process may take it before
// the caller does: who starts a server there should try another port when it does not come up.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("testserver: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
