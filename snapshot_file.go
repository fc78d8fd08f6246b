package idem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// SnapshotFile writes a [Engine.Snapshot] to a file that only its owner can read (mode 0600). It is written beside the one that
// has the name, as name.tmp, and takes its place when it is complete and on disk: whatever happens, a later process
// finds the old one or the new one. So the directory must be writable, and of a mount the directory be mounted, not the
// file. A file is one process's: the next one must not read it before the last one has written it.
func (e *Engine) SnapshotFile(name string) error {
	e.saving.Lock() // or the older of two might take the place of the newer
	defer e.saving.Unlock()
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	} else if link, err := os.Readlink(name); err == nil { // to a file that is not there yet
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(name), link)
		}
		name = link
	}
	if err := e.replaceFile(name); err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	return nil
}

func (e *Engine) replaceFile(name string) error {
	temp := name + ".tmp"
	// What a process left that was killed may be in the way, and may be anybody's to read.
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(e.Snapshot(f), f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(name))
}

// RestoreFile restores the snapshot in a file, see [Engine.Restore]. When there is none the error is [os.ErrNotExist],
// which the first start of a service will find normal.
func (e *Engine) RestoreFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("idem: snapshot: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	in := newSnapshotReader(f)
	if err := e.restoreAll(in); err != nil {
		return fmt.Errorf("%w; file %s", err, name)
	}
	if _, err := in.in.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: there is more after its end; file %s", ErrSnapshot, name)
	}
	return nil
}

// syncDir makes a new name in dir last. Windows has no such call and needs none.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
