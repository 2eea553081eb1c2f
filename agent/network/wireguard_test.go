package network_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/testkit/capture"
)

// wirePort is how WireGuard's packets look in a capture.
const wirePort = "udp 51820 51820"

// TestEncrypted looks at the cable of a machine: what its pods say to others is there with host-gw, and not with
// WireGuard, where nothing but its packets is.
func TestEncrypted(t *testing.T) {
	for _, backend := range []string{overlay.HostGW, overlay.WireGuard} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
			c, err := capture.Start("lan-m1")
			must(t, err)
			for _, proto := range []string{"tcp", "udp"} {
				wantCall(t, a.ns, proto, b.v4.String(), 80, a.v4.String())
				awaitND(t, a.ns, b.v6.String(), 80)
				wantCall(t, b.ns, proto, a.v6.String(), 80, b.v6.String())
			}
			must(t, ping(a.ns, b.v4))
			var clear, wrapped int
			other := map[string]bool{}
			for _, f := range c.Stop() {
				switch kind := f.Kind(); {
				case bytes.Contains(f, []byte("who am I")):
					clear++
				case kind == wirePort:
					wrapped++
				case kind != "arp" && kind != "icmp6" && kind != "hop-by-hop": // neighbours looking for each other
					other[kind] = true
				}
			}
			if backend == overlay.HostGW {
				if clear == 0 || wrapped > 0 {
					t.Errorf("%d frames in the clear, %d of WireGuard: the test sees nothing", clear, wrapped)
				}
				return
			}
			if clear > 0 || wrapped < 8 || len(other) > 0 {
				t.Errorf("%d frames in the clear, %d of WireGuard, and others: %v", clear, wrapped, other)
			}
		})
	}
}

// TestWireGuardRestart: the interface and the routes into it stay while the process is away, so that nothing takes
// another way; connections go on after that, with the same key.
func TestWireGuardRestart(t *testing.T) {
	_, ms := three(t, overlay.WireGuard)
	m := ms[0].defaultRoute(t, "192.0.2.254")
	a, b := m.podOn(t, "a"), ms[1].podOn(t, "b")
	var c net.Conn
	must(t, inNS(a.ns, func() (err error) { c, err = net.DialTimeout("tcp", b.v4.String()+":80", patience); return err }))
	defer c.Close()
	key := filepath.Join(m.dir, "wireguard.key")
	before, err := os.ReadFile(key)
	must(t, err)
	if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v, want the mode 0600", st, err)
	}
	if strings.Contains(m.log.String(), strings.TrimSpace(string(before))) {
		t.Error("the key was logged")
	}
	m.setLive(t, a)
	m.halt(t)
	m.wantEntries(t, 4, 0, 0)
	seen, err := capture.Start("lan-m1")
	must(t, err)
	_, callErr := call(a.ns, "udp", b.v4.String(), 80)
	frames := seen.Stop()
	if callErr == nil {
		t.Error("without a process something answers")
	}
	for _, f := range frames {
		if bytes.Contains(f, []byte("who am I")) {
			t.Errorf("without a process the pod's words go out as %s", f.Kind())
		}
	}
	m.run(t)
	eventually(t, func() error { _, err := say(c); return err })
	wantCall(t, b.ns, "tcp", a.v4.String(), 80, b.v4.String())
	if after, err := os.ReadFile(key); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key has changed: %v", err)
	}
}

// TestWireGuardRemovedByHand: whatever somebody takes away comes back.
func TestWireGuardRemovedByHand(t *testing.T) {
	_, ms := three(t, overlay.WireGuard)
	m := ms[0]
	a, b := m.podOn(t, "a"), ms[1].podOn(t, "b")
	for _, c := range []struct {
		what   string
		remove func(netlink.Link) error
	}{
		{"the device", netlink.LinkDel},
		{"the device's state", netlink.LinkSetDown},
		{"a route", func(l netlink.Link) error {
			return netlink.RouteDel(&netlink.Route{Dst: ipnet("10.42.2.0/24"), Scope: netlink.SCOPE_LINK})
		}},
		{"an address", func(l netlink.Link) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: ipnet("10.42.1.1/32")})
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			m.in(t, func() error {
				l, err := netlink.LinkByName(overlay.WireDevice)
				if err != nil {
					return err
				}
				return c.remove(l)
			})
			m.wantEntries(t, 4, 0, 0)
			wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
			wantCall(t, b.ns, "tcp", a.v6.String(), 80, b.v6.String())
			eventually(t, func() (err error) {
				m.in(t, func() error { err = hasAddress(overlay.WireDevice, "10.42.1.1"); return nil })
				return err
			})
		})
	}
}

// TestWireGuardComesAndGoes: pods that run go from VXLAN to WireGuard and back, and nothing is left of either.
func TestWireGuardComesAndGoes(t *testing.T) {
	_, ms := three(t, overlay.VXLAN)
	a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
	for _, next := range []struct {
		backend, has, hasNot string
		mtu, entries         int
	}{
		{overlay.WireGuard, overlay.WireDevice, overlay.Device, lanMTU - 80, 0},
		{overlay.VXLAN, overlay.Device, overlay.WireDevice, lanMTU - 50, 1},
	} {
		for i, m := range ms {
			m.set.Backend = next.backend
			m.halt(t)
			m.setLive(t, []*pod{a, b}[min(i, 1)])
			m.run(t)
		}
		for _, m := range ms {
			m.wantEntries(t, 4, 4*next.entries, 2*next.entries)
			if !m.hasLink(t, next.has) || m.hasLink(t, next.hasNot) {
				t.Errorf("%s on %s: the links are not as they should be", next.backend, m.set.Name)
			}
		}
		if mtu := a.mtu(t); mtu != next.mtu {
			t.Errorf("%s: the pod has MTU %d, want %d", next.backend, mtu, next.mtu)
		}
		wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
		big(t, a, b, next.mtu)
	}
}
