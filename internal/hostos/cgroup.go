package hostos

import (
	"slices"
	"strings"
)

const cgroupRoot = "/sys/fs/cgroup"

// The controllers without which the kubelet or runc refuses to work. Version 2 does without cpuset, which only a static CPU
// policy uses.
var (
	neededV1 = []string{"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory"}
	neededV2 = []string{"cpu", "memory", "pids"}
)

// mount is a line of /proc/self/mounts.
type mount struct {
	point, kind string
	options     []string
}

func (s system) probeCgroups(h *Host) error {
	text, err := s.read("proc/self/mounts")
	if err != nil {
		return err
	}
	mounts := parseMounts(text)
	if unified, ok := unifiedMount(mounts); ok {
		return s.probeV2(h, unified)
	}
	probeV1(h, mounts)
	return nil
}

func parseMounts(text string) []mount {
	var all []mount
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 4 {
			all = append(all, mount{point: f[1], kind: f[2], options: strings.Split(f[3], ",")})
		}
	}
	return all
}

// unifiedMount is the last mount at the usual place, if that is the unified hierarchy. The one that hybrid hosts have
// below it has no controllers.
func unifiedMount(mounts []mount) (mount, bool) {
	for _, m := range slices.Backward(mounts) {
		if m.point == cgroupRoot {
			return m, m.kind == "cgroup2"
		}
	}
	return mount{}, false
}

func (s system) probeV2(h *Host, m mount) error {
	text, err := s.read("sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err
	}
	h.CgroupVersion = 2
	h.CgroupWritable = !slices.Contains(m.options, "ro")
	h.MissingControllers = without(neededV2, strings.Fields(text))
	return nil
}

// probeV1 takes a controller as present when it is mounted: one that is mounted read-only makes the whole unusable.
func probeV1(h *Host, mounts []mount) {
	var present []string
	writable := true
	for _, m := range mounts {
		if m.kind != "cgroup" || !strings.HasPrefix(m.point, cgroupRoot+"/") {
			continue
		}
		present = append(present, m.options...)
		if len(without(m.options, neededV1)) < len(m.options) && slices.Contains(m.options, "ro") {
			writable = false
		}
	}
	if present == nil {
		return
	}
	h.CgroupVersion = 1
	h.CgroupWritable = writable
	h.MissingControllers = without(neededV1, present)
}

// without returns the members of all that are not in drop, nil when there are none.
func without(all, drop []string) []string {
	var left []string
	for _, a := range all {
		if !slices.Contains(drop, a) {
			left = append(left, a)
		}
	}
	return left
}
