package removal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/ledger"
)

// cgroupTimeout is for the kernel to let go of the groups of processes that have just ended.
const cgroupTimeout = 10 * time.Second

// podSlice is what systemd calls the group of all pods.
const podSlice = "kubepods.slice"

// Cgroups removes the pods' control groups.
func (m Machine) Cgroups(ctx context.Context) error {
	if there("/run/systemd/system") {
		// Else systemd would know of a slice that is not there. Without the slice it says so, which is as well.
		_ = exec.CommandContext(ctx, "systemctl", "stop", podSlice).Run()
	}
	var errs []error
	for _, root := range m.Ledger.Names(ledger.Cgroup) {
		var last error
		removed := func() (bool, error) {
			last = removeGroups(root)
			return last == nil, nil
		}
		done, err := until(ctx, cgroupTimeout, removed)
		if errs = append(errs, err); !done {
			errs = append(errs, last)
		}
	}
	return errors.Join(errs...)
}

// removeGroups removes a group and those in it, from the bottom.
func removeGroups(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the control groups in %s: %w", root, err)
	}
	for _, dir := range slices.Backward(dirs) {
		// Not os.Remove, which would try to remove a file.
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove control group: %w", &os.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	return nil
}
