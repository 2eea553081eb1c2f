// Package atomicfile replaces files so that a reader, and the next start after a
// kill, see either the whole old content or the whole new one.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces path with data, with exactly the given mode whatever the umask
// is. The directory must exist. The content survives the death of the process,
// but after a power cut the file may be empty on some file systems: use it for
// what can be made again, and WriteDurable for what cannot.
func Write(path string, mode fs.FileMode, data []byte) error {
	return replace(path, mode, data, false)
}

// WriteDurable is Write that returns only when data and its name are on disk.
func WriteDurable(path string, mode fs.FileMode, data []byte) error {
	if err := replace(path, mode, data, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func replace(path string, mode fs.FileMode, data []byte, durable bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), discard(f))
		}
	}()
	if err := fill(f, mode, data, durable); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func fill(f *os.File, mode fs.FileMode, data []byte, durable bool) error {
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if durable {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return f.Close()
}

// discard removes a temporary file that did not become the real one.
func discard(f *os.File) error {
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir returns when the names in dir are on disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
