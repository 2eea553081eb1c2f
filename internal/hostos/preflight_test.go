package hostos_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/hostos"
)

func whole() hostos.Host {
	return hostos.Host{HasNFT: true,
		Root: true, CapSysAdmin: true, CapNetAdmin: true, CapSysResource: true, CgroupVersion: 2, CgroupWritable: true,
		Overlay: true, DataDir: "/data", FreeBytes: 1 << 30, KernelLog: true,
	}
}

func TestPreflight(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(h *hostos.Host)
		needs hostos.Needs
		want  []string // fatal ones begin with !
	}{
		{"nothing", func(*hostos.Host) {}, hostos.Needs{Node: true}, nil},
		{"no root", func(h *hostos.Host) { h.Root, h.Overlay, h.CgroupVersion = false, false, 1 }, hostos.Needs{Node: true},
			[]string{"!not running as root: start it as root, for example with sudo"}},
		{"unprivileged container", func(h *hostos.Host) { h.CapSysAdmin, h.CapNetAdmin = false, false }, hostos.Needs{Node: true},
			[]string{"!missing capabilities CAP_SYS_ADMIN, CAP_NET_ADMIN: give them to the container or service (a container has to be privileged)"}},
		{"no CAP_SYS_RESOURCE", func(h *hostos.Host) { h.CapSysResource = false }, hostos.Needs{Node: true},
			[]string{"no CAP_SYS_RESOURCE: out-of-memory scores of pods are not lowered and hard limits not raised"}},
		{"no kernel log", func(h *hostos.Host) { h.KernelLog = false }, hostos.Needs{Node: true},
			[]string{"!/dev/kmsg cannot be read: give the container this device"}},
		{"full disk", func(h *hostos.Host) { h.FreeBytes = 100 << 20 }, hostos.Needs{Node: true},
			[]string{"!/data has only 100 MiB free: free at least 200 MiB or choose another place with --data-dir"}},
		{"no cgroups", func(h *hostos.Host) { h.CgroupVersion = 0 }, hostos.Needs{Node: true},
			[]string{"!no control groups are mounted at /sys/fs/cgroup: mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup"}},
		{"no memory controller", func(h *hostos.Host) { h.MissingControllers = []string{"memory"} }, hostos.Needs{Node: true},
			[]string{"!control group (v2) controllers are missing: memory: enable them; for memory boot with cgroup_enable=memory cgroup_memory=1"}},
		{"read-only cgroups", func(h *hostos.Host) { h.CgroupWritable = false }, hostos.Needs{Node: true},
			[]string{"!control groups are mounted read-only: remount them read-write (a container has to be privileged)"}},
		{"version 1", func(h *hostos.Host) { h.CgroupVersion = 1 }, hostos.Needs{Node: true},
			[]string{"control groups are of version 1, which Kubernetes keeps in maintenance only: boot with systemd.unified_cgroup_hierarchy=1"}},
		{"no overlay", func(h *hostos.Host) { h.Overlay, h.OverlayReason = false, "why" }, hostos.Needs{Node: true},
			[]string{"overlayfs does not work here (why); images are copied with the native snapshotter instead: keep the data directory on ext4 or xfs"}},
		{"no overlay but demanded", func(h *hostos.Host) { h.Overlay, h.OverlayReason = false, "why" }, hostos.Needs{Node: true, Snapshotter: "overlayfs"},
			[]string{"!overlayfs does not work here (why): choose --snapshotter=native or another --data-dir"}},
		{"no overlay, none wanted", func(h *hostos.Host) { h.Overlay = false }, hostos.Needs{Node: true, Snapshotter: "native"}, nil},
		{"control plane only", func(h *hostos.Host) {
			h.CapSysAdmin, h.CapNetAdmin, h.Overlay, h.CgroupVersion, h.KernelLog = false, false, false, 0, false
		}, hostos.Needs{}, nil},
		{"all at once", func(h *hostos.Host) { h.FreeBytes, h.CgroupVersion, h.CapSysResource = 0, 0, false }, hostos.Needs{Node: true},
			[]string{"no CAP_SYS_RESOURCE", "!/data has only 0 MiB free", "!no control groups"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := whole()
			row.spoil(&h)
			got := render(hostos.Preflight(h, row.needs))
			if !slices.EqualFunc(got, row.want, strings.HasPrefix) || len(row.want) == 1 && got[0] != row.want[0] {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(row.want, "\n"))
			}
		})
	}
}

func render(problems []hostos.Problem) []string {
	var all []string
	for _, p := range problems {
		text := p.String()
		if p.Fatal {
			text = "!" + text
		}
		all = append(all, text)
	}
	return all
}

func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	self := fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(comm)), os.Getpid())
	tcp, udp := netip.MustParseAddrPort(l.Addr().String()), netip.MustParseAddrPort(u.LocalAddr().String())
	for _, row := range []struct {
		name   string
		listen hostos.Listener
		want   string
	}{
		{"same address", hostos.Listener{Address: tcp, Use: "the API server", Flag: "--https-listen-port"},
			fmt.Sprintf("!the API server cannot listen on %s: the port is taken by %s: stop it or choose another with --https-listen-port", tcp, self)},
		{"all addresses", hostos.Listener{Address: netip.AddrPortFrom(netip.IPv4Unspecified(), tcp.Port()), Use: "x"},
			fmt.Sprintf("!x cannot listen on 0.0.0.0:%d: the port is taken by %s: stop it", tcp.Port(), self)},
		{"udp", hostos.Listener{Network: "udp", Address: udp, Use: "the cluster's DNS"},
			fmt.Sprintf("!the cluster's DNS cannot listen on %s: the port is taken by %s: stop it", udp, self)},
		{"an address of another host", hostos.Listener{Address: netip.MustParseAddrPort("203.0.113.9:80"), Use: "x", Flag: "--bind-address"},
			"!x cannot listen on 203.0.113.9:80: cannot assign requested address: give an address of this host or choose another with --bind-address"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := render(hostos.Ports([]hostos.Listener{row.listen})); len(got) != 1 || got[0] != row.want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), row.want)
			}
		})
	}
}

func TestFreePort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	for range 2 { // the check itself must not keep the port
		if got := render(hostos.Ports([]hostos.Listener{{Address: address, Use: "x"}})); got != nil {
			t.Errorf("got %s", got)
		}
	}
}
