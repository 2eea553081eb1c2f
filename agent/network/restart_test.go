package network_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/hostos"
)

const defaultBridge = network.DefaultBridge

func TestRestartKeepsConnections(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	_, stop := nd.start(t)
	p := nd.newPod(t, "a").add(t, portMapping(8080, 80, "tcp", ""))
	serve(t, p.ns, 80)
	serve(t, out, 7000)
	var in, away net.Conn
	must(t, inNS(out, func() (err error) { in, err = net.Dial("tcp", node4+":8080"); return err }))
	defer in.Close()
	must(t, inNS(p.ns, func() (err error) { away, err = net.Dial("tcp", outside4+":7000"); return err }))
	defer away.Close()
	bridge, err := netlink.LinkByName(defaultBridge)
	must(t, err)

	nd.setLive(t, p)
	stop()
	for _, c := range []net.Conn{in, away} {
		if _, err := say(c); err != nil {
			t.Errorf("while the agent is away: %v", err)
		}
	}
	nd.start(t)
	for _, c := range []net.Conn{in, away} {
		if _, err := say(c); err != nil {
			t.Errorf("after the restart: %v", err)
		}
	}
	wantCall(t, out, "tcp", node4, 8080, outside4)
	again, err := netlink.LinkByName(defaultBridge)
	must(t, err)
	if a, b := bridge.Attrs(), again.Attrs(); a.Index != b.Index || a.HardwareAddr.String() != b.HardwareAddr.String() {
		t.Errorf("bridge %d %s became %d %s", a.Index, a.HardwareAddr, b.Index, b.HardwareAddr)
	}
}

func TestDeadSandboxesAreCollected(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	_, stop := nd.start(t)
	live, dead := nd.newPod(t, "live").add(t), nd.newPod(t, "dead").add(t, portMapping(8080, 80, "tcp", ""))
	nd.newPod(t, "never-added")
	serve(t, dead.ns, 80)
	nd.setLive(t, live)
	stop()
	nd.start(t)
	if r := nd.records(t); len(r) != 1 || !strings.HasPrefix(filepath.Base(r[0]), "live@") {
		t.Errorf("records %v", r)
	}
	if v := ports(t); len(v) != 1 {
		t.Errorf("cables %v", v)
	}
	if f := nd.netnsFiles(t); len(f) != 1 || f[0] != live.ns {
		t.Errorf("namespaces %v", f)
	}
	if _, err := call(out, "tcp", node4, 8080); err == nil {
		t.Error("the dead pod's hostPort answers")
	}
	if err := ping(live.ns, netip.MustParseAddr("10.42.7.1")); err != nil {
		t.Errorf("live pod: %v", err)
	}
}

func TestOrphanedCableIsCollected(t *testing.T) {
	nd := newNode(t)
	_, stop := nd.start(t)
	p := nd.newPod(t, "a").add(t)
	stop()
	must(t, os.Remove(nd.records(t)[0]))
	nd.start(t) // the runtime knows no sandbox
	if v := ports(t); len(v) != 0 {
		t.Errorf("cables %v", v)
	}
	_ = p
}

// TestTornRecords is a disk after a power cut whose pods nevertheless run.
func TestTornRecords(t *testing.T) {
	for _, c := range []struct {
		name string
		tear func(path string) error
	}{
		{"empty", func(p string) error { return os.Truncate(p, 0) }},
		{"half", func(p string) error { return os.Truncate(p, 40) }},
		{"gone", os.Remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			nd := newNode(t)
			_, stop := nd.start(t)
			a, b := nd.newPod(t, "a").add(t), nd.newPod(t, "b").add(t)
			nd.setLive(t, a, b)
			stop()
			must(t, c.tear(filepath.Join(nd.cfg.StateDir, "pods", "a@eth0")))
			must(t, os.Truncate(filepath.Join(nd.cfg.StateDir, "pods", "last"), 0))
			nd.start(t)
			if _, err := nd.ask(request("CHECK", a.id, a.ns)); err != nil {
				t.Errorf("CHECK of the pod with the torn record: %v", err)
			}
			next := nd.newPod(t, "c").add(t)
			if next.v4 == a.v4 || next.v4 == b.v4 || next.v6 == a.v6 || next.v6 == b.v6 {
				t.Errorf("address given twice: %s %s %s", a.v4, b.v4, next.v4)
			}
			if err := ping(a.ns, next.v4); err != nil {
				t.Errorf("ping from the pod with the torn record: %v", err)
			}
			a.del(t)
			if v := ports(t); len(v) != 2 {
				t.Errorf("cables %v", v)
			}
		})
	}
}

func TestChangedPodCIDR(t *testing.T) {
	nd := newNode(t)
	_, stop := nd.start(t)
	old := nd.newPod(t, "old").add(t)
	nd.setLive(t, old)
	stop()
	nd.cfg.PodCIDRs = func(context.Context) ([]netip.Prefix, error) {
		return []netip.Prefix{netip.MustParsePrefix("10.42.8.0/24")}, nil
	}
	_, stop = nd.start(t)
	if got := strings.Count(nd.log.String(), "pod CIDRs changed"); got != 1 {
		t.Errorf("%d lines about the change, want 1:\n%s", got, nd.log)
	}
	next := nd.newPod(t, "next").add(t)
	if next.v4.String() != "10.42.8.2" || next.v6.IsValid() {
		t.Errorf("new pod has %s %s", next.v4, next.v6)
	}
	if err := ping(old.ns, next.v4); err != nil {
		t.Errorf("old pod to new pod: %v", err)
	}
	old.del(t)
	nd.setLive(t, next)
	stop()
	nd.start(t)
	link, err := netlink.LinkByName(defaultBridge)
	must(t, err)
	addrs, err := hostos.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	must(t, err)
	if len(addrs) != 1 || addrs[0].IP.String() != "10.42.8.1" {
		t.Errorf("bridge still has %v", addrs)
	}
}

// TestFirstIPNetNSAdd: somebody's first `ip netns add` must not strand a sandbox.
func TestFirstIPNetNSAdd(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal("this test needs the tool ip (package iproute2)")
	}
	must(t, os.MkdirAll("/run/netns", 0o755))
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, "")) // a /run of the test's own
	t.Cleanup(func() { unix.Unmount("/run", unix.MNT_DETACH) })
	before := mountsOf(t, "/run/netns") // the machine's own, which the test's /run hides
	must(t, network.PrepareNetNS("/run/netns"))
	must(t, network.PrepareNetNS("/run/netns"))
	if got := mountsOf(t, "/run/netns"); got != before+1 {
		t.Errorf("/run/netns was mounted %d times, and is %d times", before, got)
	}
	sandbox := "/run/netns/cni-sandbox"
	must(t, makeNetNS(sandbox))
	if out, err := exec.Command(ip, "netns", "add", "somebody").CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	if got := mountsOf(t, sandbox); got != 1 {
		t.Errorf("the sandbox's namespace is mounted %d times", got)
	}
	must(t, inNS(sandbox, func() error { return nil }))
	must(t, unix.Unmount(sandbox, 0)) // as the runtime does it
	must(t, os.Remove(sandbox))
	if out, err := exec.Command(ip, "netns", "del", "somebody").CombinedOutput(); err != nil {
		t.Errorf("ip netns del: %v: %s", err, out)
	}
}

func mountsOf(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return strings.Count(string(data), " "+path+" ")
}
