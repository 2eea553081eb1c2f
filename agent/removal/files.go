package removal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/ledger"
)

// RunFiles removes what a reboot would remove.
func (m Machine) RunFiles() error {
	if !m.Ledger.Has(ledger.Tree, m.Dir.RunDir()) && !m.Ledger.Has(ledger.Contents, m.Dir.RunDir()) {
		return nil
	}
	return m.removeTrees(m.Dir.RunDir())
}

// Files removes what is in the ledger, but for programs and the data directory. Directories that others have put something
// into stay.
func (m Machine) Files() error {
	trees := append(m.Ledger.Names(ledger.Tree), m.Ledger.Names(ledger.Contents)...)
	errs := []error{m.removeTrees(trees...)}
	for _, path := range m.Ledger.Names(ledger.File) {
		errs = append(errs, remove(path))
	}
	return errors.Join(append(errs, m.emptyDirs())...)
}

// Programs removes the executable, which may be the one that runs.
func (m Machine) Programs() error {
	var errs []error
	for _, path := range m.Ledger.Names(ledger.Program) {
		errs = append(errs, remove(path))
	}
	return errors.Join(append(errs, m.emptyDirs())...)
}

// Data removes the data directory, the ledger last: what is interrupted can be done again. Of a directory that has other
// things in it these stay.
func (m Machine) Data() error {
	if err := m.removeTrees(m.Dir.Own()...); err != nil {
		return err
	}
	for _, path := range []string{m.Dir.LockFile(), m.Dir.Ledger()} {
		if err := remove(path); err != nil {
			return err
		}
	}
	return removeEmptyDir(m.Dir.Root())
}

// emptyDirs removes directories, those below others first.
func (m Machine) emptyDirs() error {
	var errs []error
	dirs := slices.Sorted(slices.Values(m.Ledger.Names(ledger.Dir)))
	for _, path := range slices.Backward(dirs) {
		errs = append(errs, removeEmptyDir(path))
	}
	return errors.Join(errs...)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return nil
}

// removeEmptyDir leaves a directory that has something in it, or that something is mounted on.
func removeEmptyDir(path string) error {
	err := unix.Rmdir(path)
	for _, fine := range []error{nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.ENOTDIR} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	return fmt.Errorf("remove directory: %w", &os.PathError{Op: "rmdir", Path: path, Err: err})
}

// removeTrees removes directories with all that is in them. It does not go where something is mounted: that is a volume
// which could not be unmounted, or a disk of the user's.
func (m Machine) removeTrees(roots ...string) error {
	all, err := readMounts()
	if err != nil {
		return err
	}
	t := tree{mounts: all, keep: m.Ledger.Names(ledger.Keep)}
	var errs []error
	for _, root := range roots {
		if slices.Contains(m.Ledger.Names(ledger.Contents), root) {
			errs = append(errs, t.contents(root))
		} else {
			errs = append(errs, t.remove(root))
		}
	}
	return errors.Join(errs...)
}

// tree is a removal of directories that knows what stays.
type tree struct {
	mounts mounts
	keep   []string
}

// stays is whether something at or below the path stays.
func (t tree) stays(path string) bool {
	return t.mounts.has(path) || slices.Contains(t.keep, path) || len(t.mounts.below(path)) > 0
}

func (t tree) remove(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && slices.Contains(t.keep, path) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if !info.IsDir() && t.mounts.has(path) {
		return fmt.Errorf("remove %s: something is mounted on it: unmount it and do this again", path)
	}
	if !info.IsDir() || !t.stays(path) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		return nil
	}
	if t.mounts.has(path) {
		return nil // its content is not known to be ours
	}
	return errors.Join(t.contents(path), removeEmptyDir(path))
}

// contents removes what is in a directory and leaves the directory.
func (t tree) contents(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove what is in %s: %w", dir, err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, t.remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
