//go:build !linux

package load

import "runtime"

// resident is what the runtime holds, which leaves out fastcache: that takes its memory from the kernel itself.
func resident() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}
