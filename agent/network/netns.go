package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// nsfsMagic is NSFS_MAGIC of linux/magic.h: the file system of namespace files.
const nsfsMagic = 0x6e736673

// PrepareNetNS makes dir a shared mount point, as the first `ip netns add` on a
// machine does. When that comes later, it mounts dir over itself, and namespace
// files that the runtime mounted before are there twice: they can then neither
// be unmounted nor removed. Call it before the first pod, for /run/netns.
func PrepareNetNS(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make network namespace directory: %w", err)
	}
	err := shareMount(dir)
	if errors.Is(err, unix.EINVAL) { // it is not a mount point yet
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s over itself: %w", dir, err)
		}
		err = shareMount(dir)
	}
	if err != nil {
		return fmt.Errorf("share mount %s: %w", dir, err)
	}
	return nil
}

func shareMount(dir string) error { return unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "") }

// netnsPrefix begins the names of the namespaces that containerd makes.
const netnsPrefix = "cni-"

// netnsFiles lists the runtime's namespaces in dir.
func netnsFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasPrefix(e.Name(), netnsPrefix) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// isNetNS reports whether a namespace is mounted at path.
func isNetNS(path string) bool {
	var s unix.Statfs_t
	return path != "" && unix.Statfs(path, &s) == nil && s.Type == nsfsMagic
}

// removeNetNS unmounts a namespace, as often as it is mounted, and removes its
// file. What is no namespace and no empty file is left alone.
func removeNetNS(path string) error {
	for isNetNS(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount network namespace %s: %w", path, err)
		}
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != 0 {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", path, err)
	}
	return nil
}
