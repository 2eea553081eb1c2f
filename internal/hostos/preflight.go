package hostos

import (
	"fmt"
	"net/netip"
	"strings"
)

// minFreeBytes is what the payload, the certificates and a small datastore need.
const minFreeBytes = 200 << 20

// Needs is what the process is about to use.
type Needs struct {
	// Node is whether pods will run here; without it only what a control plane needs is checked.
	Node bool
	// Snapshotter is the configured one; "overlayfs" makes a missing overlay file system fatal.
	Snapshotter string
}

// Listener is a port that will be opened.
type Listener struct {
	// Network is "tcp" (also when empty) or "udp".
	Network string
	Address netip.AddrPort
	// Use names who will listen ("the API server"), Flag the option that moves it; it may be empty.
	Use  string
	Flag string
}

// Problem is a shortcoming of the host in one line.
type Problem struct {
	// Fatal problems prevent the start; others cost something that Message names.
	Fatal   bool
	Message string
	Remedy  string
}

// String is the message and its remedy.
func (p Problem) String() string {
	if p.Remedy == "" {
		return p.Message
	}
	return p.Message + ": " + p.Remedy
}

// Preflight says what stands in the way of needs on the host, fatal problems and warnings, all at once. What another user
// than root finds says nothing about what root would, so that is the only problem then.
func Preflight(h Host, needs Needs) []Problem {
	if !h.Root {
		return fatal("not running as root", "start it as root, for example with sudo")
	}
	var found []Problem
	found = append(found, privilegeProblems(h, needs.Node)...)
	found = append(found, diskProblems(h)...)
	if needs.Node {
		found = append(found, cgroupProblems(h)...)
		found = append(found, overlayProblems(h, needs.Snapshotter)...)
		found = append(found, netfilterProblems(h)...)
	}
	return found
}

// Ports says which of the ports cannot be opened, and who holds them. It belongs after the data directory's lock, so that
// a second instance is told that it is one.
func Ports(listen []Listener) []Problem {
	var found []Problem
	for _, l := range listen {
		found = append(found, thisHost().portProblems(l)...)
	}
	return found
}

func fatal(message, remedy string) []Problem {
	return []Problem{{Fatal: true, Message: message, Remedy: remedy}}
}

func warning(message, remedy string) []Problem {
	return []Problem{{Message: message, Remedy: remedy}}
}

func privilegeProblems(h Host, node bool) []Problem {
	if !node {
		return nil
	}
	var missing []string
	if !h.CapSysAdmin {
		missing = append(missing, "CAP_SYS_ADMIN")
	}
	if !h.CapNetAdmin {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if missing != nil {
		return fatal("missing capabilities "+strings.Join(missing, ", "), "give them to the container or service (a container has to be privileged)")
	}
	var found []Problem
	if !h.CapSysResource {
		found = warning("no CAP_SYS_RESOURCE: out-of-memory scores of pods are not lowered and hard limits not raised", "")
	}
	if !h.KernelLog {
		found = append(found, fatal("/dev/kmsg cannot be read", "give the container this device")...)
	}
	return found
}

func diskProblems(h Host) []Problem {
	if h.FreeBytes >= minFreeBytes {
		return nil
	}
	return fatal(fmt.Sprintf("%s has only %d MiB free", h.DataDir, h.FreeBytes>>20),
		fmt.Sprintf("free at least %d MiB or choose another place with --data-dir", minFreeBytes>>20))
}

func netfilterProblems(h Host) []Problem {
	if h.HasNFT || h.HasIPTables {
		return nil
	}
	return warning("neither nft nor iptables can be used: the addresses of Services will not answer",
		"install nftables (it needs a kernel with nf_tables and nat)")
}

func cgroupProblems(h Host) []Problem {
	switch {
	case h.CgroupVersion == 0:
		return fatal("no control groups are mounted at "+cgroupRoot, "mount them: mount -t cgroup2 cgroup2 "+cgroupRoot)
	case len(h.MissingControllers) > 0:
		return fatal(fmt.Sprintf("control group (v%d) controllers are missing: %s", h.CgroupVersion, strings.Join(h.MissingControllers, ", ")),
			controllerRemedy(h))
	case !h.CgroupWritable:
		return fatal("control groups are mounted read-only", "remount them read-write (a container has to be privileged)")
	case h.CgroupVersion == 1:
		return warning("control groups are of version 1, which Kubernetes keeps in maintenance only", "boot with systemd.unified_cgroup_hierarchy=1")
	}
	return nil
}

func controllerRemedy(h Host) string {
	for _, c := range h.MissingControllers {
		if c == "memory" {
			return "enable them; for memory boot with cgroup_enable=memory cgroup_memory=1"
		}
	}
	if h.CgroupVersion == 1 {
		return "mount them below " + cgroupRoot
	}
	return "delegate them to this part of the tree or build them into the kernel"
}

func overlayProblems(h Host, snapshotter string) []Problem {
	switch {
	case h.Overlay || snapshotter == "native":
		return nil
	case snapshotter == "overlayfs":
		return fatal("overlayfs does not work here ("+h.OverlayReason+")", "choose --snapshotter=native or another --data-dir")
	}
	return warning("overlayfs does not work here ("+h.OverlayReason+"); images are copied with the native snapshotter instead",
		"keep the data directory on ext4 or xfs")
}
