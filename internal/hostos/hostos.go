// Package hostos tells what the host offers: privileges, control groups, file systems, addresses, resolvers, and the
// service manager that started the process.
//
// It promises to read only: no packet leaves the host, no tool is run, and apart from a temporary directory for the
// overlay check nothing is written. Whatever is missing is found here, once and early, as a Problem with its remedy, so
// that no component has to find it out by a crash loop.
package hostos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what the machine, or the container that looks like one, offers at the time of Probe.
type Host struct {
	// Root is whether the effective user is 0, InUserNamespace whether that is root of a user namespace only.
	Root            bool
	InUserNamespace bool
	// CapSysAdmin and CapNetAdmin are needed by every node. Without CapSysResource (which does not count inside a user
	// namespace) out-of-memory scores cannot be lowered and hard limits cannot be raised.
	CapSysAdmin    bool
	CapNetAdmin    bool
	CapSysResource bool

	// CgroupVersion is 2 (unified), 1 (also hybrid), or 0 when no control groups are mounted at /sys/fs/cgroup.
	CgroupVersion int
	// CgroupWritable is whether the hierarchies that a node needs are mounted read-write.
	CgroupWritable bool
	// MissingControllers are the controllers that a node needs and that are not there, sorted.
	MissingControllers []string

	// Overlay is whether an overlay file system can be made of directories under the data directory; OverlayReason
	// says why not.
	Overlay       bool
	OverlayReason string
	// DataDir is the directory that FreeBytes counts for: the data directory's file system for an unprivileged user.
	DataDir   string
	FreeBytes uint64

	// HasNFT and HasIPTables are whether both the tool is in PATH and the running kernel answers to it.
	HasNFT      bool
	HasIPTables bool
	// Systemd is whether systemd is the host's service manager.
	Systemd bool
	// KernelLog is whether /dev/kmsg can be read, which the kubelet's out-of-memory watcher needs.
	KernelLog bool
}

// system is where the facts come from; tests replace the root of the file system and the calls into the kernel.
type system struct {
	root     string // prefix of /proc, /sys, /run, /etc and /dev
	euid     func() int
	lookPath func(tool string) (string, error)
	overlay  func(dir string) error
	free     func(dir string) (uint64, error)
	nft      func() error
	iptables func() error
	links    func() ([]link, error)
	routes   func() ([]route, error)
}

func thisHost() system {
	return system{
		root:     "/",
		euid:     os.Geteuid,
		lookPath: exec.LookPath,
		overlay:  tryOverlay,
		free:     freeBytes,
		nft:      tryNFT,
		iptables: tryIPTables,
		links:    hostLinks,
		routes:   defaultRoutes,
	}
}

// Probe looks at the host. dataDir need not exist: then its nearest existing ancestor is looked at. An error means that
// the host could not be read at all; what is merely missing is told by the Host.
func Probe(ctx context.Context, dataDir string) (Host, error) { return thisHost().probe(ctx, dataDir) }

func (s system) probe(ctx context.Context, dataDir string) (Host, error) {
	h := Host{DataDir: dataDir, Root: s.euid() == 0, Systemd: s.isDir("run/systemd/system"), KernelLog: s.canRead("dev/kmsg")}
	steps := []func(*Host) error{s.probePrivileges, s.probeCgroups, s.probeFiles, s.probeNetfilter}
	for _, step := range steps {
		if err := errors.Join(ctx.Err(), step(&h)); err != nil {
			return Host{}, err
		}
	}
	return h, nil
}

func (s system) probePrivileges(h *Host) error {
	status, err := s.read("proc/self/status")
	if err != nil {
		return err
	}
	uidMap, err := s.read("proc/self/uid_map")
	if err != nil {
		return err
	}
	caps, err := effectiveCaps(status)
	if err != nil {
		return err
	}
	h.InUserNamespace = inUserNamespace(uidMap)
	h.CapSysAdmin = caps&(1<<unix.CAP_SYS_ADMIN) != 0
	h.CapNetAdmin = caps&(1<<unix.CAP_NET_ADMIN) != 0
	h.CapSysResource = caps&(1<<unix.CAP_SYS_RESOURCE) != 0 && !h.InUserNamespace
	return nil
}

// effectiveCaps finds the CapEff line of /proc/self/status.
func effectiveCaps(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read capabilities: %w", err)
			}
			return caps, nil
		}
	}
	return 0, errors.New("read capabilities: /proc/self/status has no CapEff line")
}

// inUserNamespace is false only for the map of the first namespace, which maps every user to itself.
func inUserNamespace(uidMap string) bool {
	f := strings.Fields(uidMap)
	return len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295"
}

func (s system) probeFiles(h *Host) error {
	dir := existingAncestor(h.DataDir)
	free, err := s.free(dir)
	if err != nil {
		return err
	}
	h.FreeBytes = free
	if err := s.overlay(dir); err != nil {
		h.OverlayReason = err.Error()
	}
	h.Overlay = h.OverlayReason == ""
	return nil
}

// existingAncestor is dir itself or the nearest directory above it that exists.
func existingAncestor(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

func (s system) path(name string) string { return filepath.Join(s.root, name) }

func (s system) read(name string) (string, error) {
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		return "", fmt.Errorf("read host: %w", err)
	}
	return string(b), nil
}

func (s system) isDir(name string) bool {
	st, err := os.Stat(s.path(name))
	return err == nil && st.IsDir()
}

func (s system) canRead(name string) bool {
	f, err := os.Open(s.path(name))
	if err != nil {
		return false
	}
	f.Close()
	return true
}
