package progress

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgress makes sure above all that nothing but text ends up in a pipe.
func TestProgress(t *testing.T) {
	t.Run("nothing is written to a pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer func() { _ = r.Close() }()
		Show(w, func() string { return "line" })()
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
		require.True(t, IsTerminal(null))
		t.Setenv("TERM", "dumb")
		require.False(t, IsTerminal(null))
		require.False(t, IsTerminal(&bytes.Buffer{}))
	})
}
