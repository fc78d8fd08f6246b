package verify_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program on the README's first screen is run as its reader would run it, in a module of its own that was made
// with the command above it, and prints what is below it.
func TestProgramOfTheReadme(t *testing.T) {
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	parts := regexp.MustCompile("(?s)`(go mod edit [^`]*)`.*?```go\n(package main\n.*?)```\n```\n(.*?)```").FindSubmatch(readme)
	require.NotNil(t, parts, "a command, a program and its output")

	dir := filepath.Join(t.TempDir(), "app")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "..", "idem")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), parts[2], 0o600))
	shell(t, dir, "go mod init app")
	shell(t, dir, string(parts[1]))
	require.Equal(t, string(parts[3]), shell(t, dir, "go run ."))
}

// shell runs a command line outside the workspace and returns what it prints.
func shell(t *testing.T, dir, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", line, stderr.String())
	return string(out)
}
