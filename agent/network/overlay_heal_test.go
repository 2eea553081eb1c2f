package network_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// dontFragment makes a socket refuse packets above the MTU.
func dontFragment(is6 bool) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
		if is6 {
			level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
		}
		ctlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
		if ctlErr != nil {
			return ctlErr
		}
		return err
	}
}

// TestRemovedByHand: whatever somebody takes away comes back.
func TestRemovedByHand(t *testing.T) {
	_, ms := three(t, overlay.VXLAN)
	m := ms[0]
	a, b := m.podOn(t, "a"), ms[1].podOn(t, "b")
	for _, c := range []struct {
		what   string
		remove func(netlink.Link) error
	}{
		{"the device", netlink.LinkDel},
		{"the device's state", netlink.LinkSetDown},
		{"a route", func(l netlink.Link) error { return netlink.RouteDel(&netlink.Route{Dst: ipnet("10.42.2.0/24")}) }},
		{"an IPv6 route", func(l netlink.Link) error { return netlink.RouteDel(&netlink.Route{Dst: ipnet("fd42:0:0:2::/64")}) }},
		{"the entries", func(l netlink.Link) error { return removeNeighs(l, unix.AF_BRIDGE) }},
		{"the neighbours", func(l netlink.Link) error { return removeNeighs(l, netlink.FAMILY_V4) }},
		{"the IPv6 neighbours", func(l netlink.Link) error { return removeNeighs(l, netlink.FAMILY_V6) }},
		{"an address", func(l netlink.Link) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: ipnet("10.42.1.1/32")})
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			m.in(t, func() error {
				l, err := netlink.LinkByName(overlay.Device)
				if err != nil {
					return err
				}
				return c.remove(l)
			})
			m.wantEntries(t, 4, 4, 2)
			wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
			wantCall(t, a.ns, "tcp", b.v6.String(), 80, a.v6.String())
			eventually(t, func() (err error) {
				m.in(t, func() error { err = hasAddress(overlay.Device, "10.42.1.1"); return nil })
				return err
			})
		})
	}
}

// TestCableOut: the kernel forgets routes when an interface goes down, and says so of some only.
func TestCableOut(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
			ms[0].in(t, func() error {
				link, err := netlink.LinkByName("eth0")
				if err == nil {
					err = netlink.LinkSetDown(link)
				}
				return err
			})
			ms[0].in(t, func() error {
				address(t, "eth0", "2001:db8::1/64") // which the kernel took away
				awaitUp(t, "eth0")
				return nil
			})
			wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
			wantCall(t, a.ns, "tcp", b.v6.String(), 80, a.v6.String())
		})
	}
}

func hasAddress(device, want string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	all, err := hostos.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	for _, a := range all {
		if a.IP.String() == want {
			return nil
		}
	}
	return fmt.Errorf("%s has %v, not %s: %v", device, all, want, err)
}

func ipnet(cidr string) *net.IPNet {
	p := netip.MustParsePrefix(cidr)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func removeNeighs(l netlink.Link, family int) error {
	all, err := hostos.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(l.Attrs().Index, family) })
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT == 0 || n.IP.IsMulticast() {
			continue
		}
		if family == unix.AF_BRIDGE {
			n.Family = family
		}
		if err := netlink.NeighDel(&n); err != nil {
			return err
		}
	}
	return err
}

// TestAgentRestart: the tunnel and its entries stay, and with them connections; what changed meanwhile is followed.
func TestAgentRestart(t *testing.T) {
	_, ms := three(t, overlay.VXLAN)
	m := ms[0]
	a, b := m.podOn(t, "a"), ms[1].podOn(t, "b")
	var c net.Conn
	must(t, inNS(a.ns, func() (err error) { c, err = net.DialTimeout("tcp", b.v4.String()+":80", patience); return err }))
	defer c.Close()
	before := m.tunnel(t)
	m.setLive(t, a)
	m.halt(t)
	ms[2].leave()
	if _, err := say(c); err != nil {
		t.Errorf("while the agent is away: %v", err)
	}
	m.run(t)
	m.wantEntries(t, 2, 2, 1)
	if _, err := say(c); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if after := m.tunnel(t); after.Index != before.Index || after.HardwareAddr.String() != before.HardwareAddr.String() {
		t.Errorf("tunnel %d %s became %d %s", before.Index, before.HardwareAddr, after.Index, after.HardwareAddr)
	}
}

func (m *machine) tunnel(t *testing.T) (at *netlink.LinkAttrs) {
	t.Helper()
	m.in(t, func() error {
		l, err := netlink.LinkByName(overlay.Device)
		if err == nil {
			at = l.Attrs()
		}
		return err
	})
	return at
}

// TestChangedBackend: what the former one made goes.
func TestChangedBackend(t *testing.T) {
	_, ms := three(t, overlay.VXLAN)
	a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
	for i, m := range ms {
		m.set.Backend = overlay.HostGW
		m.halt(t)
		m.setLive(t, []*pod{a, b}[min(i, 1)])
		m.run(t)
	}
	for _, m := range ms {
		m.wantEntries(t, 4, 0, 0)
		if m.hasLink(t, overlay.Device) {
			t.Errorf("%s still has the tunnel", m.set.Name)
		}
	}
	wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
	if mtu := a.mtu(t); mtu != lanMTU {
		t.Errorf("the running pod has MTU %d, want %d", mtu, lanMTU)
	}
	big(t, a, b, lanMTU)
	m := ms[0]
	m.set.Backend = overlay.None
	m.halt(t)
	m.run(t)
	m.wantEntries(t, 0, 0, 0)
	eventually(t, func() error {
		meta := m.lan.api.Get("/api/v1/nodes/m1")["metadata"].(map[string]any)
		if left := meta["annotations"]; left != nil && strings.Contains(fmt.Sprint(left), "clusterd.io/network-address:1") {
			return fmt.Errorf("annotations %v", left)
		}
		return nil
	})
}

// TestRefusedAnnotation: an API that does not take it is asked again, and is named once.
func TestRefusedAnnotation(t *testing.T) {
	l := newLAN(t)
	l.api.Refuse(func(r *http.Request) *metav1.Status {
		if r.Method != http.MethodPatch {
			return nil
		}
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not now"}
	})
	m := l.machine(t, 1, overlay.VXLAN).join(t).run(t)
	eventually(t, func() error {
		if n := strings.Count(m.log.String(), "tell other nodes"); n != 1 {
			return fmt.Errorf("%d lines about it\n%s", n, m.log)
		}
		return nil
	})
	l.api.Refuse(nil)
	l.machine(t, 2, overlay.VXLAN).join(t).run(t).wantEntries(t, 2, 2, 1)
	if n := strings.Count(m.log.String(), "tell other nodes"); n != 1 {
		t.Errorf("%d lines about the refusal, want 1\n%s", n, m.log)
	}
}

func TestOverlayContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		api := kubeapi.New(t)
		api.Define("", "v1", "Node", "nodes", false)
		client, err := clientset.NewForConfig(api.Config())
		must(t, err)
		o, err := overlay.New(overlay.Config{
			Backend: overlay.VXLAN, NodeName: "m1", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
			Addresses: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil },
			Pods:      somePods{}, Nodes: client, Self: client, KeyFile: filepath.Join(t.TempDir(), "wireguard.key"),
		}, slog.New(slog.DiscardHandler))
		must(t, err)
		return o
	})
}

type somePods struct{}

func (somePods) Gateways() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.42.1.1")} }
func (somePods) SetMTU(int) error       { return nil }
