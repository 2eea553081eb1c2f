package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Place is where snapshots are kept.
type Place interface {
	// Names are those of all snapshots, in order.
	Names(ctx context.Context) ([]string, error)
	// Describe reads what a snapshot says of itself; that this does not work is in the result.
	Describe(ctx context.Context, name string) Info
	// Delete removes a snapshot. The error is ErrNotFound when it is not there.
	Delete(ctx context.Context, name string) error
}

// Folder is a directory of snapshots.
type Folder string

// Path is the archive of the snapshot called name.
func (f Folder) Path(name string) string { return filepath.Join(string(f), name+suffix) }

// Names are those of the archives in the folder, none when that is not there.
func (f Folder) Names(context.Context) ([]string, error) {
	entries, err := os.ReadDir(string(f))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && e.Type().IsRegular() && nameRule.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Describe reads the head of an archive.
func (f Folder) Describe(_ context.Context, name string) Info { return describe(name, f.Path(name)) }

func describe(name, path string) Info {
	i := Info{Name: name, Location: path}
	file, err := os.Open(path)
	if err != nil {
		i.Fault = err.Error()
		return i
	}
	defer file.Close()
	if stat, err := file.Stat(); err == nil {
		i.Size = stat.Size()
	}
	a, err := openArchive(file)
	if err != nil {
		i.Fault = err.Error()
		return i
	}
	defer a.close()
	i.Meta = a.Meta
	return i
}

// Delete removes an archive.
func (f Folder) Delete(_ context.Context, name string) error {
	err := os.Remove(f.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("delete snapshot: %w", err)
	}
	return nil
}

// scratch is where an archive in the making is. Only who holds the folder's lock may touch it.
func (f Folder) scratch() string { return filepath.Join(string(f), ".saving") }

// claim makes the folder and locks it, so that one snapshot at a time is made in it, and removes what an earlier one that
// was killed has left.
func (f Folder) claim() (release func(), err error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of snapshots: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(string(f), ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory of snapshots: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another snapshot is being saved in %s: try again when it is done", f)
		}
		return nil, fmt.Errorf("lock directory of snapshots: %w", err)
	}
	if err := os.RemoveAll(f.scratch()); err != nil {
		lock.Close()
		return nil, fmt.Errorf("remove an interrupted snapshot: %w", err)
	}
	return func() {
		_ = os.RemoveAll(f.scratch())
		lock.Close()
	}, nil
}

// Clean removes what a snapshot that was killed has left. It does nothing while one is made.
func (f Folder) Clean() {
	if _, err := os.Stat(f.scratch()); err != nil {
		return
	}
	if release, err := f.claim(); err == nil {
		release()
	}
}
