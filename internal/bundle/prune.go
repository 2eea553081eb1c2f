package bundle

import (
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix names directories of an extraction in progress or cut short.
const tempPrefix = ".extract-"

// prune removes every directory below dir but keep, except those from which a
// process runs. The data directory's lock makes sure that nobody else extracts
// here at the same time.
func prune(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var old []string
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != keep && e.IsDir() && isPayload(e.Name()) {
			old = append(old, path)
		}
	}
	if len(old) == 0 {
		return nil
	}
	running, err := executables("/proc")
	if err != nil {
		return err
	}
	for _, path := range old {
		if uses(running, path) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// isPayload reports whether a directory's name is one that Extract gives, so
// that nothing else is ever removed.
func isPayload(name string) bool {
	if strings.HasPrefix(name, tempPrefix) {
		return true
	}
	return len(name) == nameDigits && strings.Trim(name, "0123456789abcdef") == ""
}

// executables lists the paths of all running executables in a proc file system.
func executables(proc string) ([]string, error) {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "exe"))
	if err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(links))
	for _, link := range links {
		// Kernel threads have no executable, and processes end meanwhile.
		if path, err := os.Readlink(link); err == nil {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

func uses(executables []string, dir string) bool {
	for _, path := range executables {
		if strings.HasPrefix(path, dir+string(filepath.Separator)) {
			return true
		}
	}
	return false
}
