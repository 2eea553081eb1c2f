package kubelet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// removeEmptied removes the kubelet's own records that a power cut has emptied: it does not start with one, and makes them
// again from what runs. What is below pods/ is the pods'.
func removeEmptied(root string, log *slog.Logger) error {
	var errs []error
	for _, dir := range []string{root, filepath.Join(root, "device-plugins")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it is not there yet
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
				continue
			}
			path := filepath.Join(dir, e.Name())
			log.Warn("a record of the kubelet was empty, as after a power cut: it is made again", "file", path)
			errs = append(errs, os.Remove(path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove emptied records of the kubelet: %w", err)
	}
	return nil
}
