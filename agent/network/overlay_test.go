package network_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network/overlay"
)

// three starts three machines of one cluster and waits until they know each other.
func three(t *testing.T, backend string) (l *lan, ms []*machine) {
	t.Helper()
	l = newLAN(t)
	for i := range 3 {
		ms = append(ms, l.machine(t, i+1, backend).join(t).run(t))
	}
	for _, m := range ms {
		if backend == overlay.VXLAN {
			m.wantEntries(t, 4, 4, 2)
		} else {
			m.wantEntries(t, 4, 0, 0)
		}
	}
	return l, ms
}

// TestPodsOfThreeMachines: pods see each other's own addresses, on every way.
func TestPodsOfThreeMachines(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW, overlay.WireGuard} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			var pods []*pod
			for _, m := range ms {
				pods = append(pods, m.podOn(t, "on-"+m.set.Name))
			}
			for _, from := range pods {
				for _, to := range pods {
					for _, proto := range []string{"tcp", "udp"} {
						wantCall(t, from.ns, proto, to.v4.String(), 80, from.v4.String())
						awaitND(t, from.ns, to.v6.String(), 80)
						wantCall(t, from.ns, proto, to.v6.String(), 80, from.v6.String())
					}
				}
				if err := ping(from.ns, pods[0].v4); err != nil {
					t.Errorf("ping %s: %v", pods[0].v4, err)
				}
			}
			// So does a node, where its DNS is for one.
			serve(t, ms[1].ns, 9090)
			wantCall(t, pods[0].ns, "tcp", "10.42.2.1", 9090, pods[0].v4.String())
			wantCall(t, pods[0].ns, "tcp", "fd42:0:0:2::1", 9090, pods[0].v6.String())
			// The node itself has one address for pods, wherever they are.
			wantCall(t, ms[0].ns, "tcp", pods[1].v4.String(), 80, "10.42.1.1")
			wantCall(t, ms[0].ns, "tcp", pods[1].v6.String(), 80, "fd42:0:0:1::1")
			big(t, pods[0], pods[1], map[string]int{overlay.VXLAN: lanMTU - 50, overlay.HostGW: lanMTU, overlay.WireGuard: lanMTU - 80}[backend])
			for _, m := range ms {
				if strings.Contains(m.log.String(), "WARN") && !strings.Contains(m.log.String(), "br_netfilter") {
					t.Errorf("%s said:\n%s", m.set.Name, m.log)
				}
			}
		})
	}
}

// big sends the largest packets that pods may, in both families, none of them in fragments.
func big(t *testing.T, from, to *pod, mtu int) {
	t.Helper()
	for _, row := range []struct {
		addr    netip.Addr
		headers int
	}{{to.v4, 20 + 8}, {to.v6, 40 + 8}} {
		if !row.addr.IsValid() {
			continue
		}
		eventually(t, func() error { return sendWhole(from.ns, row.addr, mtu-row.headers) })
		if err := sendWhole(from.ns, row.addr, mtu-row.headers+1); !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("a packet to %s above the MTU %d: %v, want %v", row.addr, mtu, err, unix.EMSGSIZE)
		}
		if err := bulk(from.ns, to.ns, row.addr); err != nil {
			t.Errorf("4 MiB to %s: %v", row.addr, err)
		}
	}
}

// sendWhole sends a UDP packet that must not be fragmented and waits for the answer.
func sendWhole(ns string, to netip.Addr, size int) error {
	return inNS(ns, func() error {
		d := net.Dialer{Timeout: time.Second, Control: dontFragment(to.Is6())}
		c, err := d.Dial("udp", netip.AddrPortFrom(to, 80).String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write(make([]byte, size)); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 64))
		return err
	})
}

// bulk sends 4 MiB by TCP.
func bulk(fromNS, toNS string, to netip.Addr) error {
	const size = 4 << 20
	var l net.Listener
	if err := inNS(toNS, func() (err error) { l, err = net.Listen("tcp", ":81"); return err }); err != nil {
		return err
	}
	defer l.Close()
	got := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		n, err := io.Copy(io.Discard, c)
		if err == nil && n != size {
			err = fmt.Errorf("got %d bytes", n)
		}
		got <- err
	}()
	err := inNS(fromNS, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 81).String(), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		_, err = c.Write(make([]byte, size))
		return err
	})
	if err != nil {
		return err
	}
	return <-got
}

// TestNoTunnelForOneMachine: there is none before a second machine, and none after the last.
func TestNoTunnelForOneMachine(t *testing.T) {
	l := newLAN(t)
	one := l.machine(t, 1, overlay.VXLAN).join(t).run(t)
	two := l.machine(t, 2, overlay.VXLAN)
	if one.hasLink(t, overlay.Device) {
		t.Error("one machine alone has a tunnel")
	}
	p := one.podOn(t, "a")
	if mtu := p.mtu(t); mtu != lanMTU-50 {
		t.Errorf("the pod has MTU %d, want %d", mtu, lanMTU-50)
	}
	two.join(t).run(t)
	one.wantEntries(t, 2, 2, 1)
	two.wantEntries(t, 2, 2, 1)
	q := two.podOn(t, "b")
	wantCall(t, p.ns, "tcp", q.v4.String(), 80, p.v4.String())
	two.leave()
	one.wantEntries(t, 0, 0, 0)
	if one.hasLink(t, overlay.Device) {
		t.Error("the tunnel stays after the last other machine left")
	}
}

func (m *machine) hasLink(t *testing.T, name string) (has bool) {
	t.Helper()
	m.in(t, func() error {
		_, err := netlink.LinkByName(name)
		has = err == nil
		return nil
	})
	return has
}

func (p *pod) mtu(t *testing.T) (mtu int) {
	t.Helper()
	must(t, inNS(p.ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			mtu = l.Attrs().MTU
		}
		return err
	}))
	return mtu
}

// TestLeavingMachine: what belongs to it goes, and nothing else.
func TestLeavingMachine(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW, overlay.WireGuard} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
			ms[2].leave()
			if backend == overlay.VXLAN {
				ms[0].wantEntries(t, 2, 2, 1)
			} else {
				ms[0].wantEntries(t, 2, 0, 0)
			}
			routes, _, _ := ms[0].entries(t)
			if slices.ContainsFunc(routes, func(r string) bool { return strings.Contains(r, "10.42.3.") || strings.Contains(r, "fd42:0:0:3:") }) {
				t.Errorf("routes %v", routes)
			}
			wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
		})
	}
}

// TestChangedAddress: connections of pods live through it.
func TestChangedAddress(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
			var c net.Conn
			must(t, inNS(a.ns, func() (err error) { c, err = net.DialTimeout("tcp", b.v4.String()+":80", patience); return err }))
			defer c.Close()
			ms[1].in(t, func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				old, err := netlink.ParseAddr("192.0.2.2/24")
				if err == nil {
					err = netlink.AddrDel(link, old)
				}
				if err == nil {
					address(t, "eth0", "192.0.2.22/24")
				}
				return err
			})
			want := "192.0.2.22"
			eventually(t, func() error {
				routes, _, fdb := ms[0].entries(t)
				if !slices.ContainsFunc(append(routes, fdb...), func(s string) bool { return strings.HasSuffix(s, " "+want) }) {
					return fmt.Errorf("routes %v, forwarding entries %v, want the address %s in them", routes, fdb, want)
				}
				return nil
			})
			eventually(t, func() error {
				saw, err := say(c)
				if err == nil && saw != a.v4.String() {
					err = fmt.Errorf("saw %s", saw)
				}
				return err
			})
		})
	}
}
