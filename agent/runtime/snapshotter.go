package runtime

import (
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
)

// Snapshotters.
const (
	overlayfs = "overlayfs"
	native    = "native"
)

// chooseSnapshotter returns the configured snapshotter, or the one that works.
func (r *Runtime) chooseSnapshotter() (string, error) {
	if r.cfg.Snapshotter == native {
		return native, nil
	}
	err := overlayutils.Supported(filepath.Join(r.cfg.Root, "overlay-check"))
	switch {
	case err == nil:
		return overlayfs, nil
	case r.cfg.Snapshotter == overlayfs:
		return "", fmt.Errorf("use snapshotter overlayfs: %w", err)
	}
	r.log.Warn("overlayfs does not work here: containers get a full copy of their image, which takes time and space", "error", err)
	return native, nil
}
