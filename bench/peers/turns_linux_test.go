package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stopped tells whether the kernel has stopped a process.
func stopped(t *testing.T, p *process) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(stat), ") ")
	require.True(t, ok)
	return after[0] == 'T'
}

func TestOneMeasuresWhileTheOthersAreStopped(t *testing.T) {
	turns, parked, filling := newTurns(), startIdem(t), startIdem(t)
	turns.join(parked)
	turns.join(filling)
	turns.park(parked)
	eventually := func(p *process, want bool) {
		require.Eventually(t, func() bool { return stopped(t, p) == want }, 5*time.Second, time.Millisecond)
	}
	eventually(parked, true)
	eventually(filling, false)

	turns.alone(parked, func() {
		eventually(filling, true)
		_, err := parked.call(command{Do: "open", Records: 1000}, time.Minute)
		require.NoError(t, err)
	})
	eventually(parked, true)
	eventually(filling, false)

	turns.leave(filling)
	turns.end()
	require.Empty(t, turns.members)
}
