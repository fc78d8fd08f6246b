package pgstore_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

// The README's program prints what the README says, and charges nothing when it is run again.
func TestHeavyReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	program, rest, found := strings.Cut(rest, "```\n```\n")
	require.True(t, found)
	output, _, found := strings.Cut(rest, "```\n")
	require.True(t, found)

	server, err := testserver.StartPostgres(testserver.PostgresConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	for _, want := range []string{output, strings.ReplaceAll(output, "charging\n", "")} {
		// The file is no part of this module, but is built as if it were.
		cmd := exec.CommandContext(t.Context(), "go", "run", file)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+server.URL())
		got, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", got)
		require.Equal(t, want, string(got))
	}
}
