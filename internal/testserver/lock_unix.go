//go:build darwin || linux

package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock waits until no other process of this user installs anything. The system gives the lock back when the
// process ends, however it ends; the file stays.
func lock() (unlock func(), err error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("idem-testserver-%d.lock", os.Getuid()))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
