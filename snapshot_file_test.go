package idem_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func TestSnapshotFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "idem.snapshot")
	r := newRig(t, idem.Config{})
	require.ErrorIs(t, r.RestoreFile(name), fs.ErrNotExist)
	require.NoError(t, os.WriteFile(name, []byte("what was there"), 0o644))
	err := r.RestoreFile(name)
	require.ErrorIs(t, err, idem.ErrSnapshot)
	require.ErrorContains(t, err, name)
	r.complete(r.fresh("k", 0), "b")
	require.NoError(t, r.SnapshotFile(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "responses are nobody else's business")

	next := newRig(t, idem.Config{})
	require.NoError(t, next.RestoreFile(name))
	next.replays("k", "b")

	require.NoError(t, r.Close())
	require.ErrorIs(t, r.SnapshotFile(name), idem.ErrClosed)
	require.ErrorIs(t, next.SnapshotFile(filepath.Join(dir, "missing", "f")), fs.ErrNotExist)
	require.NoError(t, newRig(t, idem.Config{}).RestoreFile(name), "the old one is as it was")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "and nothing is left over")
}

// Whatever a process that was killed has left does not stay, and is not trusted.
func TestSnapshotFileBesideALeftover(t *testing.T) {
	name := filepath.Join(t.TempDir(), "idem.snapshot")
	require.NoError(t, os.WriteFile(name+".tmp", []byte("half of it"), 0o666))
	r := newRig(t, idem.Config{})
	r.complete(r.fresh("k", 0), "b")
	require.NoError(t, r.SnapshotFile(name))
	require.NoFileExists(t, name+".tmp")
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	next := newRig(t, idem.Config{})
	require.NoError(t, next.RestoreFile(name))
	next.replays("k", "b")
}

// A link leads to where the file is to be kept: on a volume, for instance.
func TestSnapshotFileThroughALink(t *testing.T) {
	target, link := filepath.Join(t.TempDir(), "target"), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	require.NoError(t, os.Symlink(target, link))
	r := newRig(t, idem.Config{})
	r.complete(r.fresh("k", 0), "b")
	require.NoError(t, r.SnapshotFile(link))
	for _, name := range []string{target, link} {
		next := newRig(t, idem.Config{})
		require.NoError(t, next.RestoreFile(name))
		next.replays("k", "b")
	}
}

func TestRestoreFileWithMoreThanASnapshot(t *testing.T) {
	name := filepath.Join(t.TempDir(), "idem.snapshot")
	r := newRig(t, idem.Config{})
	saved := r.snapshot()
	require.NoError(t, os.WriteFile(name, append(saved, saved...), 0o600))
	err := r.RestoreFile(name)
	require.ErrorIs(t, err, idem.ErrSnapshot)
	require.ErrorContains(t, err, name)
}

// The last snapshot is the one that stays, whenever one that began before it ends.
func TestSnapshotFileWhileAnotherIsWritten(t *testing.T) {
	dir := t.TempDir()
	for round := range 30 {
		name := filepath.Join(dir, fmt.Sprint(round))
		r := newRig(t, idem.Config{Shards: 1})
		for i := range 300 {
			r.done(fmt.Sprint(i), "b", time.Hour)
		}
		var periodic sync.WaitGroup
		for range 2 {
			periodic.Go(func() {
				if err := r.SnapshotFile(name); err != nil {
					t.Error(err)
				}
			})
		}
		r.done("last", "paid", time.Hour)
		require.NoError(t, r.SnapshotFile(name))
		periodic.Wait()
		next := newRig(t, idem.Config{})
		require.NoError(t, next.RestoreFile(name))
		next.replays("last", "paid")
	}
}

// The engine of a TieredStore holds what another store knows, in a form of its own.
func TestSnapshotOfATier(t *testing.T) {
	r, remote := newRig(t, idem.Config{}), newRig(t, idem.Config{})
	saved := remote.snapshot()
	_ = idem.Tiered(r.Engine, remote)
	_ = idem.Tiered(r.Engine, remote) // again
	require.ErrorContains(t, r.Snapshot(&failingWriter{}), "TieredStore")
	require.ErrorContains(t, r.Restore(bytes.NewReader(saved)), "TieredStore")
	r.fresh("k", 0)
	_ = idem.Tiered(r.Engine, remote)
	remote.fresh("k", 0)
	require.Panics(t, func() { idem.Tiered(remote.Engine, r) }, "what it holds has not that form")
}

// A link to where the snapshot is to be stays one, also the first time.
func TestSnapshotFileBehindALinkToNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "volume"), 0o700))
	for _, target := range []string{filepath.Join(dir, "volume", "absolute"), filepath.Join("volume", "relative")} {
		link := filepath.Join(dir, filepath.Base(target))
		require.NoError(t, os.Symlink(target, link))
		r := newRig(t, idem.Config{})
		require.NoError(t, r.SnapshotFile(link))
		info, err := os.Lstat(link)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&fs.ModeSymlink)
		require.FileExists(t, filepath.Join(dir, "volume", filepath.Base(target)))
	}
}
