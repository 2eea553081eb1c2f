package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func portMapping(host, container int, protocol, hostIP string) string {
	return fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,"protocol":%q,"hostIP":%q}`, host, container, protocol, hostIP)
}

func TestMasqueradeToOutside(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	serve(t, out, 7000)
	p := nd.newPod(t, "a").add(t)
	wantCall(t, p.ns, "tcp", outside4, 7000, node4)
	wantCall(t, p.ns, "udp", outside4, 7000, node4)
	awaitND(t, p.ns, outside6, 7000)
	wantCall(t, p.ns, "tcp", outside6, 7000, node6)
	if err := ping(p.ns, netip.MustParseAddr(outside4)); err != nil {
		t.Errorf("ping outside: %v", err)
	}
}

func TestNoMasqueradeInsideTheCluster(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t)
	// Let outside be another node: with a pod's address and a route back.
	must(t, inNS(out, func() error {
		address(t, "eth0", "10.42.9.9/32")
		dst := &net.IPNet{IP: podCIDR4.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}
		return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(node4)})
	}))
	serve(t, out, 7000)
	wantCall(t, p.ns, "tcp", "10.42.9.9", 7000, p.v4.String())
}

func TestHostPort(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t, portMapping(8080, 80, "TCP", ""), portMapping(8080, 80, "udp", "0.0.0.0"), portMapping(8443, 80, "tcp", "::"))
	neighbour := nd.newPod(t, "b").add(t)
	serve(t, p.ns, 80)
	awaitND(t, out, node6, 8080)
	awaitND(t, neighbour.ns, node6, 8080)
	for _, c := range []struct {
		name, from, proto, host string
		port                    int
		saw                     string
	}{
		{"outside", out, "tcp", node4, 8080, outside4},
		{"outside, UDP", out, "udp", node4, 8080, outside4},
		{"outside, IPv6", out, "tcp", node6, 8080, outside6},
		{"outside, IPv6 only", out, "tcp", node6, 8443, outside6},
		{"node by its address", "", "tcp", node4, 8080, ""},
		{"node by loopback", "", "tcp", "127.0.0.1", 8080, ""},
		{"node by loopback, UDP", "", "udp", "127.0.0.1", 8080, ""},
		{"node by its IPv6 address", "", "tcp", node6, 8080, ""},
		{"pod on the same node", neighbour.ns, "tcp", node4, 8080, neighbour.v4.String()},
		{"pod on the same node, IPv6", neighbour.ns, "tcp", node6, 8080, neighbour.v6.String()},
		{"the pod itself", p.ns, "tcp", node4, 8080, ""},
		{"the pod itself, UDP", p.ns, "udp", node4, 8080, ""},
	} {
		t.Run(c.name, func(t *testing.T) { wantCall(t, c.from, c.proto, c.host, c.port, c.saw) })
	}
	if _, err := call(out, "tcp", node4, 8443); err == nil {
		t.Error("a mapping for :: answers on IPv4")
	}
	p.del(t)
	if _, err := call(out, "tcp", node4, 8080); err == nil {
		t.Error("the port still answers after DEL")
	}
}

func TestHostPortOnOneAddress(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t, portMapping(8080, 80, "tcp", node4), portMapping(8081, 80, "tcp", "127.0.0.1"))
	serve(t, p.ns, 80)
	wantCall(t, out, "tcp", node4, 8080, outside4)
	wantCall(t, "", "tcp", "127.0.0.1", 8081, "")
	must(t, inNS(out, func() error { return loopbackBy(node4, outside4) }))
	if _, err := call(out, "tcp", "127.0.0.1", 8081); err == nil {
		t.Error("a port on the loopback address answers outside")
	}
	for _, c := range []struct {
		from, host string
		port       int
	}{{"", "127.0.0.1", 8080}, {out, node4, 8081}, {"", node4, 8081}} {
		if _, err := call(c.from, "tcp", c.host, c.port); err == nil {
			t.Errorf("port %d answers on %s", c.port, c.host)
		}
	}
}

func TestHostPortMovesToTheNewPod(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	old := nd.newPod(t, "old").add(t, portMapping(8080, 80, "udp", ""))
	serve(t, old.ns, 80)
	var c net.Conn
	must(t, inNS(out, func() (err error) { c, err = net.Dial("udp", node4+":8080"); return err }))
	defer c.Close()
	if _, err := say(c); err != nil {
		t.Fatalf("old pod: %v", err)
	}
	old.del(t)
	next := nd.newPod(t, "next").add(t, portMapping(8080, 80, "udp", ""))
	serve(t, next.ns, 80)
	if _, err := say(c); err != nil { // the same client port: the kernel still knew the flow
		t.Errorf("new pod: %v", err)
	}
}

func TestPodsDoNotReachTheNodesLoopback(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t)
	l, err := net.Listen("tcp", "127.0.0.1:6000")
	must(t, err)
	defer l.Close()
	go serveTCP(l)
	wantCall(t, "", "tcp", "127.0.0.1", 6000, "127.0.0.1")
	must(t, inNS(p.ns, func() error { return loopbackBy("10.42.7.1", p.v4.String()) }))
	if saw, err := call(p.ns, "tcp", "127.0.0.1", 6000); err == nil {
		t.Errorf("the node's loopback answered a pod, as %s", saw)
	}
}

// loopbackBy makes the namespace send 127.0.0.0/8 to another machine, which only
// somebody with bad intentions does.
func loopbackBy(gateway, src string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0o644); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr("127.0.0.1/8")
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(lo, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	dst := &net.IPNet{IP: net.IP{127, 0, 0, 0}, Mask: net.CIDRMask(8, 32)}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: dst, Gw: net.ParseIP(gateway), Src: net.ParseIP(src)})
}

// TestServiceOnTheSameNode puts a Service's translation beside our rules, as
// kube-proxy does: a client on the same node keeps its address, and a pod
// reaches itself.
func TestServiceOnTheSameNode(t *testing.T) {
	nd := newNode(t)
	nd.cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")} // there is no default route
	nd.start(t)
	server, client := nd.newPod(t, "server").add(t), nd.newPod(t, "client").add(t)
	serve(t, server.ns, 80)
	service(t, "10.43.0.9", server.v4)
	wantCall(t, client.ns, "tcp", "10.43.0.9", 80, client.v4.String())
	wantCall(t, client.ns, "udp", "10.43.0.9", 80, client.v4.String())
	wantCall(t, server.ns, "tcp", "10.43.0.9", 80, "")
	wantCall(t, "", "tcp", "10.43.0.9", 80, "10.42.7.1")
}

// TestServiceWithoutBridgeFilter is a kernel without br_netfilter: the answer of
// a pod on the same bridge must nevertheless find its way back.
func TestServiceWithoutBridgeFilter(t *testing.T) {
	const switches = "/proc/sys/net/bridge"
	must(t, os.WriteFile(switches+"/bridge-nf-call-iptables", []byte("0"), 0o644))
	must(t, unix.Mount("tmpfs", switches, "tmpfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { unix.Unmount(switches, unix.MNT_DETACH) })
	nd := newNode(t)
	nd.cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	nd.start(t)
	server, client := nd.newPod(t, "server").add(t), nd.newPod(t, "client").add(t)
	serve(t, server.ns, 80)
	service(t, "10.43.0.9", server.v4)
	wantCall(t, client.ns, "tcp", "10.43.0.9", 80, "10.42.7.1")
	wantCall(t, client.ns, "tcp", server.v4.String(), 80, client.v4.String())
	if got := strings.Count(nd.log.String(), "br_netfilter"); got != 1 {
		t.Errorf("%d lines about it, want 1:\n%s", got, nd.log)
	}
}

// TestManyHostPorts has more rules than the kernel's answers to them have room
// for in a socket of the usual size.
func TestManyHostPorts(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	var wg sync.WaitGroup
	var last *pod
	for i := range 30 {
		var mappings []string
		for j := range 20 {
			mappings = append(mappings, portMapping(10000+20*i+j, 80, "tcp", ""))
		}
		p := nd.newPod(t, fmt.Sprint("p", i))
		last = p
		wg.Go(func() {
			if err := p.tryAdd(mappings...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	serve(t, last.ns, 80)
	wantCall(t, out, "tcp", node4, 10000+20*29+19, outside4)
}

// service translates one address to another, and masquerades what a pod sends to itself.
func service(t *testing.T, vip string, to netip.Addr) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	table := c.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4})
	load := func(offset uint32, data []byte) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Cmp{Register: 1, Data: data},
		}
	}
	for name, hook := range map[string]*nftables.ChainHook{"pre": nftables.ChainHookPrerouting, "out": nftables.ChainHookOutput} {
		chain := c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(load(16, net.ParseIP(vip).To4()),
			&expr.Immediate{Register: 1, Data: to.AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(80)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2})})
	}
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: append(append(load(12, to.AsSlice()), load(16, to.AsSlice())...), &expr.Masq{})})
	must(t, c.Flush())
}

// TestForwardPolicyDrop is a host on which Docker set the policy, before or
// after the network started.
func TestForwardPolicyDrop(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("before=%v", before), func(t *testing.T) {
			nd := newNode(t)
			out := nd.outside(t)
			serve(t, out, 7000)
			if before {
				dropForwarded(t)
			}
			nd.start(t)
			p := nd.newPod(t, "a").add(t)
			if !before {
				dropForwarded(t)
			}
			eventually(t, func() error { _, err := call(p.ns, "tcp", outside4, 7000); return err })
			if got := forwardRules(t); got != 2 {
				t.Errorf("%d rules in the host's FORWARD chain, want 2", got)
			}
		})
	}
}

func dropForwarded(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	drop := nftables.ChainPolicyDrop
	table := c.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	c.AddChain(&nftables.Chain{
		Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	must(t, c.Flush())
}

func forwardRules(t *testing.T) int {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
	rules, err := c.GetRules(table, &nftables.Chain{Name: "FORWARD", Table: table})
	must(t, err)
	return len(rules)
}

func TestDeletedRulesComeBack(t *testing.T) {
	nd := newNode(t)
	out := nd.outside(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t, portMapping(8080, 80, "tcp", ""))
	serve(t, p.ns, 80)
	serve(t, out, 7000)
	flushRules(t)
	eventually(t, func() error { _, err := call(out, "tcp", node4, 8080); return err })
	wantCall(t, p.ns, "tcp", outside4, 7000, node4)
}
