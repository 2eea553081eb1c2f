package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// AddFile enters a file that is going to be made, with the directories above it, unless these are there. A file that is
// there already is somebody else's.
func (l *Ledger) AddFile(path string) error { return l.addPath(File, path) }

// AddTree enters a directory in which everything is going to be clusterd's, with the directories above it. If it is there
// already, what is in it now stays.
func (l *Ledger) AddTree(path string) error {
	if l.Has(Tree, path) || l.Has(Contents, path) {
		return nil
	}
	there, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l.addPath(Tree, path)
	case err != nil:
		return fmt.Errorf("look what is in %s: %w", path, err)
	}
	entries := []Entry{{Contents, path}}
	for _, e := range there {
		entries = append(entries, Entry{Keep, filepath.Join(path, e.Name())})
	}
	return l.Add(entries...)
}

func (l *Ledger) addPath(kind Kind, path string) error {
	if l.Has(kind, path) {
		return nil
	}
	missing, err := missing(path)
	if err != nil || missing == nil {
		return err
	}
	return l.Add(append(missing[:len(missing)-1], Entry{kind, path})...)
}

// AddDir enters a directory that is going to be made and that others may use too, with those above it.
func (l *Ledger) AddDir(path string) error { return l.addPath(Dir, path) }

// missing are the path and the directories above it that are not there, from the top, or nil if the path is.
func missing(path string) ([]Entry, error) {
	_, err := os.Lstat(path)
	if err == nil {
		return nil, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for %s: %w", path, err)
	}
	above, err := missing(filepath.Dir(path))
	return append(above, Entry{Dir, path}), err
}
