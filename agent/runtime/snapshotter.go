package runtime

import (
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
)

// Native is the snapshotter that copies; it works everywhere.
const Native = "native"

const overlayfs = "overlayfs"

// chooseSnapshotter returns the configured snapshotter, or the one that works.
func (r *Runtime) chooseSnapshotter() (string, error) {
	if r.cfg.Snapshotter == Native {
		return Native, nil
	}
	err := overlayutils.Supported(filepath.Join(r.cfg.Root, "overlay-check"))
	switch {
	case err == nil:
		return overlayfs, nil
	case r.cfg.Snapshotter == overlayfs:
		return "", fmt.Errorf("use snapshotter overlayfs: %w", err)
	}
	// Rare: the host was looked at before, and whoever did that chose then.
	r.log.Warn("overlayfs does not work here: containers get a full copy of their image, which takes time and space", "error", err)
	return Native, nil
}
