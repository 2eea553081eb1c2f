package hostos

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tryOverlay makes an overlay file system of two temporary directories in dir without mounting it anywhere: whether it
// works depends on the kernel, the privileges and the file system of dir (an overlay cannot be the upper layer).
func tryOverlay(dir string) error {
	tmp, err := os.MkdirTemp(dir, ".overlay-check-")
	if err != nil {
		return fmt.Errorf("make directory for overlay check: %w", err)
	}
	defer os.RemoveAll(tmp)
	layers := map[string]string{}
	for _, option := range []string{"lowerdir", "upperdir", "workdir"} {
		layers[option] = filepath.Join(tmp, option)
		if err := os.Mkdir(layers[option], 0o700); err != nil {
			return fmt.Errorf("make directory for overlay check: %w", err)
		}
	}
	return createOverlay(layers)
}

// createOverlay has the kernel set up the file system; closing the descriptor takes it away again.
func createOverlay(options map[string]string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open overlay file system: %w", err)
	}
	defer unix.Close(fd)
	for key, value := range options {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("set overlay option %s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("create overlay file system in %s: %w", filepath.Dir(options["upperdir"]), err)
	}
	return nil
}
