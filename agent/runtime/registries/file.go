package registries

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// File is a registries.yaml that is read again whenever it has changed. It need
// not exist.
type File struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	version version
	current *Registries
}

// version tells whether a file has changed; the zero value is a missing file.
type version struct {
	modified time.Time
	size     int64
}

// NewFile returns the file at path; an empty path is a file that never exists.
func NewFile(path string, log *slog.Logger) *File {
	return &File{path: path, log: log, current: &Registries{}}
}

// Load reads the file and fails if it is invalid. It is for the start: later
// reads keep the last good contents.
func (f *File) Load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.stat()
	if err != nil {
		return err
	}
	return f.read(v)
}

// Current returns what the file says now. If it cannot be read or is invalid,
// that is logged once a change and the last good contents are returned.
func (f *File) Current() *Registries {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.stat()
	if err == nil && v == f.version {
		return f.current
	}
	if err == nil {
		err = f.read(v)
	}
	if err != nil {
		f.log.Error("registries file ignored, its last good contents stay in force", "error", err)
	}
	return f.current
}

func (f *File) stat() (version, error) {
	if f.path == "" {
		return version{}, nil
	}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return version{}, nil
	}
	if err != nil {
		return version{}, fmt.Errorf("read registries: %w", err)
	}
	return version{modified: info.ModTime(), size: info.Size()}, nil
}

// read takes up version v; f.mu is held.
func (f *File) read(v version) error {
	f.version = v
	if v == (version{}) {
		f.current = &Registries{}
		return nil
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("read registries: %w", err)
	}
	parsed, err := Parse(data)
	if err != nil {
		return fmt.Errorf("read registries %s: %w", f.path, err)
	}
	f.current = parsed
	return nil
}
