package hostos

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The lines of /proc/self/mounts that matter for control groups.
const (
	unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
	legacy  = `tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0
cgroup /sys/fs/cgroup/net_cls cgroup ro,net_cls 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
`
	allControllers = "cpuset cpu io memory hugetlb pids\n"
)

// fakeHost is a machine on which nothing is missing, in a directory of its own.
func fakeHost(t *testing.T) system {
	t.Helper()
	s := system{
		root:     t.TempDir(),
		euid:     func() int { return 0 },
		lookPath: func(tool string) (string, error) { return "/sbin/" + tool, nil },
		overlay:  func(string) error { return nil },
		free:     func(string) (uint64, error) { return 1 << 30, nil },
		nft:      func() error { return nil },
		iptables: func() error { return nil },
	}
	put(t, s, "proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
	put(t, s, "proc/self/uid_map", "         0          0 4294967295\n")
	put(t, s, "proc/self/mounts", unified)
	put(t, s, "sys/fs/cgroup/cgroup.controllers", allControllers)
	put(t, s, "dev/kmsg", "")
	put(t, s, "run/systemd/system/x", "")
	return s
}

func put(t *testing.T, s system, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, s system, name string) {
	t.Helper()
	if err := os.RemoveAll(s.path(name)); err != nil {
		t.Fatal(err)
	}
}

func TestProbe(t *testing.T) {
	whole := Host{
		Root: true, CapSysAdmin: true, CapNetAdmin: true, CapSysResource: true, CgroupVersion: 2, CgroupWritable: true, Overlay: true,
		DataDir: "/data", FreeBytes: 1 << 30, HasNFT: true, HasIPTables: true, Systemd: true, KernelLog: true,
	}
	broken := errors.New("broken")
	for _, row := range []struct {
		name  string
		spoil func(t *testing.T, s *system)
		want  func(h *Host)
	}{
		{"nothing missing", func(*testing.T, *system) {}, func(*Host) {}},
		{"a user", func(_ *testing.T, s *system) { s.euid = func() int { return 1000 } }, func(h *Host) { h.Root = false }},
		{"no CAP_SYS_RESOURCE", func(t *testing.T, s *system) {
			put(t, *s, "proc/self/status", "CapEff:\t000001fffeffffff\n")
		}, func(h *Host) { h.CapSysResource = false }},
		{"no capabilities", func(t *testing.T, s *system) {
			put(t, *s, "proc/self/status", "CapEff:\t0000000000000000\n")
		}, func(h *Host) { h.CapSysAdmin, h.CapNetAdmin, h.CapSysResource = false, false, false }},
		{"user namespace", func(t *testing.T, s *system) { put(t, *s, "proc/self/uid_map", "0 100000 65536\n") },
			func(h *Host) { h.InUserNamespace, h.CapSysResource = true, false }},
		{"no cgroups", func(t *testing.T, s *system) { put(t, *s, "proc/self/mounts", "proc /proc proc rw 0 0\n") },
			func(h *Host) { h.CgroupVersion, h.CgroupWritable = 0, false }},
		{"cgroups of version 1", func(t *testing.T, s *system) { put(t, *s, "proc/self/mounts", legacy) },
			func(h *Host) { h.CgroupVersion = 1 }},
		{"version 1 without memory and freezer", func(t *testing.T, s *system) {
			put(t, *s, "proc/self/mounts", strings.NewReplacer("rw,memory", "rw,x", "rw,freezer", "rw,y").Replace(legacy))
		}, func(h *Host) { h.CgroupVersion, h.MissingControllers = 1, []string{"freezer", "memory"} }},
		{"version 1 read-only", func(t *testing.T, s *system) {
			put(t, *s, "proc/self/mounts", strings.Replace(legacy, "rw,memory", "ro,memory", 1))
		}, func(h *Host) { h.CgroupVersion, h.CgroupWritable = 1, false }},
		{"version 2 without memory", func(t *testing.T, s *system) {
			put(t, *s, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids")
		}, func(h *Host) { h.MissingControllers = []string{"memory"} }},
		{"version 2 read-only", func(t *testing.T, s *system) {
			put(t, *s, "proc/self/mounts", strings.Replace(unified, "rw", "ro", 1))
		}, func(h *Host) { h.CgroupWritable = false }},
		{"version 2 over version 1", func(t *testing.T, s *system) { put(t, *s, "proc/self/mounts", legacy+unified) }, func(*Host) {}},
		{"no overlay", func(_ *testing.T, s *system) { s.overlay = func(string) error { return broken } },
			func(h *Host) { h.Overlay, h.OverlayReason = false, "broken" }},
		{"no nft tool", func(_ *testing.T, s *system) {
			s.lookPath = func(tool string) (string, error) { return "", map[bool]error{true: broken}[tool == "nft"] }
		}, func(h *Host) { h.HasNFT = false }},
		{"no kernel netfilter", func(_ *testing.T, s *system) {
			s.nft, s.iptables = func() error { return broken }, func() error { return broken }
		}, func(h *Host) { h.HasNFT, h.HasIPTables = false, false }},
		{"no systemd, no kernel log", func(t *testing.T, s *system) { remove(t, *s, "run"); remove(t, *s, "dev") },
			func(h *Host) { h.Systemd, h.KernelLog = false, false }},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, want := fakeHost(t), whole
			row.spoil(t, &s)
			row.want(&want)
			got, err := s.probe(t.Context(), "/data")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

func TestProbeErrors(t *testing.T) {
	for _, name := range []string{"proc/self/status", "proc/self/uid_map", "proc/self/mounts", "sys/fs/cgroup/cgroup.controllers"} {
		s := fakeHost(t)
		remove(t, s, name)
		if _, err := s.probe(t.Context(), "/"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s: got %v", name, err)
		}
	}
	for _, status := range []string{"Name:\tx\n", "CapEff:\txyz\n"} {
		s := fakeHost(t)
		put(t, s, "proc/self/status", status)
		if _, err := s.probe(t.Context(), "/"); err == nil {
			t.Errorf("capabilities were read from %q", status)
		}
	}
}

// TestProbeThisHost runs the real probes: what they find depends on the machine, but they have to come to an end and agree
// with what Go says by other means.
func TestProbeThisHost(t *testing.T) {
	dir := t.TempDir()
	h, err := Probe(t.Context(), filepath.Join(dir, "not", "yet"))
	if err != nil {
		t.Fatal(err)
	}
	if h.Root != (os.Geteuid() == 0) || h.FreeBytes == 0 || h.Overlay != (h.OverlayReason == "") {
		t.Errorf("got %+v", h)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	t.Logf("%+v", h)
}

func TestOverlayOnOverlayDirectory(t *testing.T) {
	if err := tryOverlay(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := tryOverlay("/dev/shm"); err != nil {
		t.Errorf("overlay on tmpfs: %v", err)
	}
	if err := tryOverlay("/proc"); err == nil {
		t.Error("overlay in /proc works")
	}
}

func TestExistingAncestor(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{dir: dir, dir + "/a/b/c": dir, "/no/such/thing": "/", "none/at/all": "."} {
		if got := existingAncestor(path); got != want {
			t.Errorf("of %s: got %s, want %s", path, got, want)
		}
	}
}
