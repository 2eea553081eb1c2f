package removal

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/ledger"
)

// mount is a line of mountinfo.
type mount struct{ point, kind string }

type mounts []mount

// readMounts lists the mounts, later ones behind those that they may be on.
func readMounts() (mounts, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(string(data)), nil
}

// unescape undoes what the kernel does to characters that separate fields and lines.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parseMounts(text string) mounts {
	var all mounts
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		if f, kind := strings.Fields(before), strings.Fields(after); ok && len(f) >= 5 && len(kind) > 0 {
			all = append(all, mount{unescape.Replace(strings.TrimSuffix(f[4], "//deleted")), kind[0]})
		}
	}
	return all
}

func (all mounts) has(point string) bool {
	return slices.ContainsFunc(all, func(m mount) bool { return m.point == point })
}

// below are the mounts strictly below a directory, last ones first.
func (all mounts) below(dir string) (points []string) {
	for _, m := range slices.Backward(all) {
		if strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	return points
}

// cgroups are the roots of the hierarchies of control groups.
func (all mounts) cgroups() (roots []string) {
	for _, m := range all {
		if m.kind == "cgroup" || m.kind == "cgroup2" {
			roots = append(roots, m.point)
		}
	}
	return roots
}

// Mounts takes off what containers and volumes have left mounted, and the directory of network namespaces over itself if
// nobody else uses it. What is mounted on the directories themselves, such as a disk for images, is the user's.
func (m Machine) Mounts() (n int, err error) {
	all, err := readMounts()
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, dir := range []string{m.Dir.ContainerdState(), m.Dir.KubeletRoot(), m.Dir.ContainerdRoot()} {
		for _, point := range all.below(dir) {
			n++
			errs = append(errs, unmount(point))
		}
	}
	if m.Ledger.Has(ledger.Mount, datadir.NetNS) {
		errs = append(errs, unmountUnused(datadir.NetNS))
	}
	return n, errors.Join(errs...)
}

// unmount does not wait for a server that is away: what is unmounted goes when it can.
func unmount(point string) error {
	err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it went with another one
		return fmt.Errorf("unmount %s: %w", point, err)
	}
	return nil
}

func unmountUnused(point string) error {
	all, err := readMounts()
	if err != nil || !all.has(point) || len(all.below(point)) > 0 {
		return err
	}
	return unmount(point)
}
