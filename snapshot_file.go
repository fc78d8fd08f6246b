package idem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// SnapshotFile writes a [Engine.Snapshot] to a file that only this user can read. The file is complete and on disk when it
// gets its name, in the place of the one that has it: whatever happens, a later process finds the old one or the new one.
func (e *Engine) SnapshotFile(name string) error {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, filepath.Base(name)+".*.tmp")
	if err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	err = errors.Join(e.Snapshot(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("idem: snapshot: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return syncDir(dir)
}

// RestoreFile restores the snapshot in a file, see [Engine.Restore]. When there is none the error is [os.ErrNotExist],
// which the first start of a service will find normal.
func (e *Engine) RestoreFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	return e.Restore(f)
}

// syncDir makes a new name in dir last. Windows has no such call and needs none.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	return nil
}
