package load

import (
	"fmt"
	"os"
)

// resident is the process's memory as the kernel counts it, so that memory which is not the collector's counts.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	var size, pages int64
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		panic(fmt.Sprintf("the kernel does not tell this process's memory: %v", err))
	}
	return pages * int64(os.Getpagesize())
}
