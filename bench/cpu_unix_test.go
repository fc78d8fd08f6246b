//go:build unix

package bench_test

import (
	"syscall"
	"time"
)

// cpuTime is the processor time that the process has taken so far, for itself and in the kernel.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
