// Package twice keeps files that nothing can be made from again in a second place, since a power cut may leave an empty
// file where one was.
//
// It promises that a file is given back only when it is there and empty: one that somebody has removed stays away.
package twice

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// Restore gives those of the files that are empty back from their copies in dir, and returns them.
func Restore(dir string, files ...string) (restored []string, _ error) {
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
			continue // who needs it says what is wrong with it
		}
		kept, err := os.ReadFile(copyOf(dir, file))
		if err != nil || len(kept) == 0 {
			continue
		}
		if err := atomicfile.WriteDurable(file, info.Mode().Perm(), kept); err != nil {
			return restored, fmt.Errorf("give back a file that was empty: %w", err)
		}
		restored = append(restored, file)
	}
	return restored, nil
}

// Save brings the copies up to date. A file that is not there, or empty, leaves its copy as it is.
func Save(dir string, files ...string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of second copies: %w", err)
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, save(dir, file))
	}
	return errors.Join(errs...)
}

func save(dir, file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep a second copy: %w", err)
	}
	if kept, err := os.ReadFile(copyOf(dir, file)); err == nil && bytes.Equal(kept, data) {
		return nil
	}
	if err := atomicfile.WriteDurable(copyOf(dir, file), 0o600, data); err != nil {
		return fmt.Errorf("keep a second copy: %w", err)
	}
	return nil
}

func copyOf(dir, file string) string { return filepath.Join(dir, filepath.Base(file)) }
