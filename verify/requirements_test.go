package verify_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever embeds the engine gets xxhash and x/sync, and testify for its tests: nothing else may be required.
func TestRootRequiresThreeModules(t *testing.T) {
	text, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	direct := regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\S+$`) // what is indirect has a comment
	var modules []string
	for _, line := range direct.FindAllStringSubmatch(string(text), -1) {
		modules = append(modules, line[1])
	}
	require.Equal(t, []string{"github.com/cespare/xxhash/v2", "github.com/stretchr/testify", "golang.org/x/sync"}, modules)
}
