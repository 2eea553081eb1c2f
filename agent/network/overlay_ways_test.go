package network_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network/overlay"
)

// defaultRoute makes the test's own namespace the machine's router.
func (m *machine) defaultRoute(t *testing.T, via string) *machine {
	t.Helper()
	m.in(t, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)})
	})
	return m
}

// elsewhere makes the test's namespace a router to the network 198.51.100.0/24 too.
func elsewhere(t *testing.T) {
	t.Helper()
	address(t, "lan", "198.51.100.254/24")
	const forward = "/proc/sys/net/ipv4/ip_forward"
	must(t, os.WriteFile(forward, []byte("1"), 0o644))
	t.Cleanup(func() { must(t, os.WriteFile(forward, []byte("0"), 0o644)) })
}

// TestAnotherSubnet: VXLAN reaches it; host-gw does not and says so, once.
func TestAnotherSubnet(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW} {
		t.Run(backend, func(t *testing.T) {
			l := newLAN(t)
			elsewhere(t)
			near := l.machine(t, 1, backend, "192.0.2.1/24").defaultRoute(t, "192.0.2.254").join(t).run(t)
			far := l.machine(t, 2, backend, "198.51.100.2/24").defaultRoute(t, "198.51.100.254").join(t).run(t)
			if backend == overlay.VXLAN {
				near.wantEntries(t, 2, 2, 1)
				far.wantEntries(t, 2, 2, 1)
				a, b := near.podOn(t, "a"), far.podOn(t, "b")
				wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
				return
			}
			const warning = "node m2: its address 198.51.100.2 is on no network of this node, which host-gw needs"
			eventually(t, func() error {
				if n := strings.Count(near.log.String(), warning); n != 1 {
					return fmt.Errorf("%d warnings\n%s", n, near.log)
				}
				return nil
			})
			l.machine(t, 3, backend).join(t).run(t)
			near.wantEntries(t, 1, 0, 0) // the third machine's IPv4 pods: there is no IPv6 network here
			if n := strings.Count(near.log.String(), warning); n != 1 {
				t.Errorf("%d warnings, want 1\n%s", n, near.log)
			}
		})
	}
}

// TestExternalAddress is of a site whose inner addresses mean nothing elsewhere.
func TestExternalAddress(t *testing.T) {
	l := newLAN(t)
	elsewhere(t)
	a1 := l.machine(t, 1, overlay.VXLAN, "192.0.2.1/24").defaultRoute(t, "192.0.2.254")
	a2 := l.machine(t, 2, overlay.VXLAN, "192.0.2.2/24").defaultRoute(t, "192.0.2.254")
	far := l.machine(t, 3, overlay.VXLAN, "198.51.100.3/24", "10.99.0.3/24").defaultRoute(t, "198.51.100.254")
	far.set.Addresses = []netip.Addr{netip.MustParseAddr("10.99.0.3")}
	far.set.External = []netip.Addr{netip.MustParseAddr("198.51.100.3")}
	a2.set.External = []netip.Addr{netip.MustParseAddr("203.0.113.2")} // where nobody is
	for _, m := range []*machine{a1, a2, far} {
		m.join(t).run(t)
	}
	for _, m := range []*machine{a1, a2, far} {
		m.wantEntries(t, 4, 4, 2)
	}
	_, _, fdb := a1.entries(t)
	got := strings.Join(fdb, "\n")
	if !strings.Contains(got, " 192.0.2.2") || !strings.Contains(got, " 198.51.100.3") {
		t.Errorf("forwarding entries %v, want the neighbour's own address and the far machine's external one", fdb)
	}
	p, q, r := a1.podOn(t, "p"), a2.podOn(t, "q"), far.podOn(t, "r")
	wantCall(t, p.ns, "tcp", q.v4.String(), 80, p.v4.String())
	wantCall(t, p.ns, "tcp", r.v4.String(), 80, p.v4.String())
	wantCall(t, r.ns, "tcp", p.v6.String(), 80, r.v6.String())
}

// TestIPv6Only has neither pods nor machines with IPv4 addresses.
func TestIPv6Only(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW, overlay.WireGuard} {
		t.Run(backend, func(t *testing.T) {
			l := newLAN(t)
			var ms []*machine
			for i := range 2 {
				m := l.machine(t, i+1, backend, fmt.Sprintf("2001:db8::%d/64", i+1))
				m.set.ClusterCIDRs, m.set.PodCIDRs = m.set.ClusterCIDRs[1:], m.set.PodCIDRs[1:]
				ms = append(ms, m.join(t).run(t))
			}
			count := map[string]int{overlay.VXLAN: 1}[backend]
			ms[0].wantEntries(t, 1, count, count)
			ms[1].wantEntries(t, 1, count, count)
			a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
			awaitND(t, a.ns, b.v6.String(), 80)
			wantCall(t, a.ns, "tcp", b.v6.String(), 80, a.v6.String())
			mtu := map[string]int{overlay.VXLAN: lanMTU - 70, overlay.HostGW: lanMTU, overlay.WireGuard: lanMTU - 80}[backend]
			if got := a.mtu(t); got != mtu {
				t.Errorf("MTU %d, want %d", got, mtu)
			}
			big(t, a, b, mtu)
		})
	}
}

// TestChangedMTU: running pods get the smaller one, and what they send still arrives.
func TestChangedMTU(t *testing.T) {
	_, ms := three(t, overlay.VXLAN)
	a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
	for _, m := range ms {
		m.in(t, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, 1400)
		})
	}
	for _, p := range []*pod{a, b} {
		eventually(t, func() error {
			if mtu := p.mtu(t); mtu != 1350 {
				return fmt.Errorf("pod %s has MTU %d, want 1350", p.id, mtu)
			}
			return nil
		})
	}
	big(t, a, b, 1350)
	if mtu := ms[0].newPod(t, "c").add(t).mtu(t); mtu != 1350 {
		t.Errorf("a new pod has MTU %d", mtu)
	}
}

// TestNodePortOfAnotherMachine plays kube-proxy on a machine that drops what it
// forwards: what comes from outside for a pod on another machine gets there, with
// this machine's address, and so do the answers.
func TestNodePortOfAnotherMachine(t *testing.T) {
	l := newLAN(t)
	one, two := l.machine(t, 1, overlay.VXLAN), l.machine(t, 2, overlay.VXLAN)
	one.in(t, func() error { dropForwarded(t); return nil })
	one.join(t).run(t)
	two.join(t).run(t)
	one.wantEntries(t, 2, 2, 1)
	two.wantEntries(t, 2, 2, 1)
	b := two.podOn(t, "b")
	one.in(t, func() error { return leadPorts(b.v4, 80, 81) })
	wantCall(t, "", "tcp", "192.0.2.1", 80, "10.42.1.1")
	wantCall(t, "", "udp", "192.0.2.1", 80, "10.42.1.1")
	if err := bulk("", b.ns, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("4 MiB: %v", err)
	}
}

// TestHostPortOfAnotherMachine: a pod, and the machine itself, get at a port of another one that leads to a pod there.
func TestHostPortOfAnotherMachine(t *testing.T) {
	for _, backend := range []string{overlay.VXLAN, overlay.HostGW} {
		t.Run(backend, func(t *testing.T) {
			_, ms := three(t, backend)
			a := ms[0].podOn(t, "a")
			b := ms[1].newPod(t, "b").add(t, portMapping(8080, 80, "tcp", ""), portMapping(8080, 80, "udp", ""))
			serve(t, b.ns, 80)
			for _, proto := range []string{"tcp", "udp"} {
				wantCall(t, a.ns, proto, "192.0.2.2", 8080, "192.0.2.1")
				wantCall(t, ms[0].ns, proto, "192.0.2.2", 8080, "192.0.2.1")
			}
			wantCall(t, a.ns, "tcp", "2001:db8::2", 8080, "2001:db8::1")
		})
	}
}

// leadPorts leads ports of the machine to a pod, as kube-proxy does for a NodePort.
func leadPorts(pod netip.Addr, ports ...uint16) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4})
	pre := c.AddChain(&nftables.Chain{
		Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	post := c.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, port := range ports {
		c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Immediate{Register: 1, Data: pod.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		}})
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: pod.AsSlice()},
		&expr.Masq{FullyRandom: true},
	}})
	return c.Flush()
}

// TestSomebodyElsesTunnel: one with the same number on the same port is named, and left alone.
func TestSomebodyElsesTunnel(t *testing.T) {
	l := newLAN(t)
	one := l.machine(t, 1, overlay.VXLAN)
	one.in(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "flannel.1"
		return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472})
	})
	one.join(t).run(t)
	l.machine(t, 2, overlay.VXLAN).join(t).run(t)
	eventually(t, func() error {
		if !strings.Contains(one.log.String(), "another VXLAN interface (flannel.1) has VNI 1 on UDP port 8472: remove it") {
			return fmt.Errorf("it said:\n%s", one.log)
		}
		return nil
	})
	one.in(t, func() error {
		link, err := netlink.LinkByName("flannel.1")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	one.wantEntries(t, 2, 2, 1)
}

// TestIdleClusterProgramsNothing: heartbeats, other annotations and addresses of others' interfaces change nothing.
func TestIdleClusterProgramsNothing(t *testing.T) {
	l, ms := three(t, overlay.VXLAN)
	m := ms[0]
	programmed := func() int { return strings.Count(m.log.String(), "programmed the way") }
	looked := func() int { return strings.Count(m.log.String(), "looked at the kernel") }
	before, looks, writes := programmed(), looked(), len(l.api.Writes())
	for i := range 20 {
		o := maps.Clone(l.api.Get("/api/v1/nodes/m2"))
		meta := maps.Clone(o["metadata"].(map[string]any))
		meta["labels"] = map[string]any{"beat": fmt.Sprint(i)}
		o["metadata"], o["status"] = meta, map[string]any{"images": []any{map[string]any{"sizeBytes": i}}}
		l.api.Put("/api/v1/nodes/m2", o)
	}
	m.in(t, func() error { address(t, "eth0", "203.0.113.7/32"); return nil }) // makes it look
	m.podOn(t, "a")
	ms[2].leave()
	m.wantEntries(t, 2, 2, 1)
	eventually(t, func() error { // the look at what the new address may have changed
		if looked() == looks {
			return fmt.Errorf("it did not look:\n%s", m.log)
		}
		return nil
	})
	if got := programmed() - before; got != 1 {
		t.Errorf("programmed %d times, want once for the node that left\n%s", got, m.log)
	}
	if got := l.api.Writes()[writes:]; len(got) != 0 {
		t.Errorf("writes %v", got)
	}
}
