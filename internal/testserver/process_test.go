package testserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

// parentEnv makes this test binary a process that starts a child, says its number and waits to be killed.
const parentEnv = "TESTSERVER_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) == "" {
		os.Exit(m.Run())
	}
	p, err := testserver.Start(exec.Command("sleep", "1000"), nil)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.Pid())
	select {}
}

// shell starts a script that is ready when it has printed "ready".
func shell(t *testing.T, script string) *testserver.Process {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := testserver.Start(exec.Command("sh", "-c", script, "sh", ready), func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
}

// gone waits until there is no process pid.
func gone(t *testing.T, pid int) {
	t.Helper()
	for giveUp := time.Now().Add(10 * time.Second); time.Now().Before(giveUp); {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	require.Fail(t, "the process lives on")
}

func TestProcess(t *testing.T) {
	t.Run("is ready when Start returns, and Stop ends it", func(t *testing.T) {
		p := shell(t, `trap 'echo bye; exit 0' TERM; echo hello; : >"$1"; while :; do sleep 0.05; done`)
		require.Eventually(t, func() bool { return p.Output() == "hello\n" }, 10*time.Second, time.Millisecond)
		require.NoError(t, p.Stop())
		require.Equal(t, "hello\nbye\n", p.Output())
		gone(t, p.Pid())
		require.NoError(t, p.Stop(), "again")
		require.NoError(t, p.Kill(), "again")
	})
	t.Run("Kill does not ask", func(t *testing.T) {
		p := shell(t, `trap 'echo bye' TERM; : >"$1"; while :; do sleep 0.05; done`)
		require.NoError(t, p.Kill())
		require.Empty(t, p.Output())
		gone(t, p.Pid())
		<-p.Done()
	})
	t.Run("that ends before it is ready is an error with its output", func(t *testing.T) {
		_, err := testserver.Start(exec.Command("sh", "-c", "echo no such config; exit 3"), func(context.Context) error {
			return errors.New("connection refused")
		})
		require.ErrorContains(t, err, "ended before it was ready (exit status 3): connection refused")
		require.ErrorContains(t, err, "no such config")
	})
	t.Run("that does not exist is an error", func(t *testing.T) {
		_, err := testserver.Start(exec.Command("no-such-program-of-ours"), nil)
		require.ErrorIs(t, err, exec.ErrNotFound)
	})
	t.Run("keeps the end of a long output", func(t *testing.T) {
		p := shell(t, `i=0; while [ $i -lt 20000 ]; do echo "line $i of many"; i=$((i+1)); done; : >"$1"; exec sleep 1000`)
		require.NoError(t, p.Kill()) // now all of it is there
		lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
		require.Equal(t, "line 19999 of many", lines[len(lines)-1])
		require.LessOrEqual(t, len(p.Output()), 64<<10)
		require.Greater(t, len(p.Output()), 63<<10)
	})
	t.Run("dies when its parent is killed", func(t *testing.T) {
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), parentEnv+"=1")
		out, err := parent.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, parent.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		child, err := strconv.Atoi(strings.TrimSpace(line))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(child, 0), "the child runs")
		require.NoError(t, parent.Process.Kill())
		require.Error(t, parent.Wait())
		gone(t, child)
	})
}

func TestFreePort(t *testing.T) {
	port, err := testserver.FreePort()
	require.NoError(t, err)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
