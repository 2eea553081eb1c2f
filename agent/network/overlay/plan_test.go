package overlay

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// here is a node with both families, on one network of each.
func here() host {
	return host{
		addrs: addrs("192.0.2.1", "2001:db8::1"), gateways: addrs("10.42.1.1", "fd42:0:0:1::1"), over: family4, mtu: 1500,
		subnets: []subnet{{2, netip.MustParsePrefix("192.0.2.0/24")}, {2, netip.MustParsePrefix("2001:db8::/64")}},
	}
}

// there is a node on the same networks.
func there(change func(*peer)) peer {
	p := peer{
		name: "b", backend: VXLAN, mac: "0a:5a:0a:2a:02:01", addrs: addrs("192.0.2.2", "2001:db8::2"),
		cidrs: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24"), netip.MustParsePrefix("fd42:0:0:2::/64")},
	}
	change(&p)
	return p
}

// TestReach: the address of the same network, else the external one, else the only one.
func TestReach(t *testing.T) {
	v6 := here()
	v6.over = family6
	for name, row := range map[string]struct {
		h    host
		p    func(*peer)
		want string
	}{
		"same network":                       {here(), func(p *peer) {}, "192.0.2.2"},
		"same network, external":             {here(), func(p *peer) { p.external = addrs("203.0.113.2") }, "192.0.2.2"},
		"other network":                      {here(), func(p *peer) { p.addrs = addrs("10.0.0.2") }, "10.0.0.2"},
		"other network, external":            {here(), func(p *peer) { p.addrs, p.external = addrs("10.0.0.2"), addrs("203.0.113.2") }, "203.0.113.2"},
		"external of the other family":       {here(), func(p *peer) { p.addrs, p.external = addrs("10.0.0.2"), addrs("2001:db8:1::2") }, "10.0.0.2"},
		"external alone":                     {here(), func(p *peer) { p.addrs, p.external = nil, addrs("203.0.113.2") }, "203.0.113.2"},
		"by IPv6":                            {v6, func(p *peer) {}, "2001:db8::2"},
		"by IPv6, other network, external":   {v6, func(p *peer) { p.addrs, p.external = addrs("fd00::2"), addrs("2001:db8:1::2") }, "2001:db8:1::2"},
		"by IPv6, but it has only IPv4 ones": {v6, func(p *peer) { p.addrs = addrs("192.0.2.2") }, "invalid IP"},
	} {
		got, has := row.h.reach(there(row.p))
		if got.String() != row.want || has != got.IsValid() {
			t.Errorf("%s: %s %t, want %s", name, got, has, row.want)
		}
	}
}

// TestOddPeers: each gets one line that names it and what to do, and takes nothing from the others.
func TestOddPeers(t *testing.T) {
	for name, row := range map[string]struct {
		backend string
		p       func(*peer)
		want    string
	}{
		"other backend":             {HostGW, func(p *peer) {}, "node b: its backend is vxlan, here it is host-gw"},
		"no address":                {VXLAN, func(p *peer) { p.addrs = addrs("2001:db8::2") }, "node b: it has no IPv4 address"},
		"this node's address":       {VXLAN, func(p *peer) { p.addrs = addrs("192.0.2.1") }, "node b: it says that its address is 192.0.2.1"},
		"no MAC":                    {VXLAN, func(p *peer) { p.mac = "" }, "node b: it has told no MAC"},
		"another's MAC":             {VXLAN, func(p *peer) { p.mac = "0a:5a:0a:2a:03:01" }, "node b: its MAC is another node's"},
		"host-gw, this node's":      {HostGW, func(p *peer) { p.backend, p.addrs = HostGW, addrs("192.0.2.1", "2001:db8::2") }, "node b: it says that its address is 192.0.2.1"},
		"host-gw, far":              {HostGW, func(p *peer) { p.backend, p.addrs = HostGW, addrs("10.0.0.2", "2001:db8::2") }, "node b: its address 10.0.0.2 is on no network"},
		"host-gw, without a family": {HostGW, func(p *peer) { p.backend, p.addrs = HostGW, addrs("192.0.2.2") }, "node b: it has no IPv6 address"},
	} {
		good := there(func(p *peer) {
			p.name, p.backend, p.mac, p.addrs = "a", row.backend, "0a:5a:0a:2a:03:01", addrs("192.0.2.3", "2001:db8::3")
			p.cidrs = []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")}
		})
		got, odd := here().plan(row.backend, []peer{there(row.p), good})
		if len(odd) != 1 || !strings.HasPrefix(odd[0], row.want) {
			t.Errorf("%s: said %q, want %q", name, odd, row.want)
		}
		if !slices.ContainsFunc(got.routes, func(r route) bool { return r.to == good.cidrs[0] }) {
			t.Errorf("%s: no route to the good one: %v", name, got.routes)
		}
	}
}

func TestPlanIsTheSameInAnyOrder(t *testing.T) {
	a := there(func(p *peer) { p.name, p.mac, p.addrs = "a", "0a:5a:0a:2a:03:01", addrs("192.0.2.3") })
	one, _ := here().plan(VXLAN, []peer{a, there(func(*peer) {})})
	two, _ := here().plan(VXLAN, []peer{there(func(*peer) {}), a})
	if !one.equal(two) || !reflect.DeepEqual(one, two) {
		t.Errorf("%+v\nis not\n%+v", one, two)
	}
	if three, _ := here().plan(VXLAN, []peer{a}); one.equal(three) {
		t.Error("a plan equals one without a node")
	}
}

// TestMACsDiffer: a node's MAC follows from its pods' network alone.
func TestMACsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{"10.42.1.1", "10.42.2.1", "10.43.1.1", "fd42:0:0:1::1", "fd42:0:0:2::1", "fd42:0:1::1"} {
		mac := tunnelMAC(netip.MustParseAddr(text))
		if other := seen[mac.String()]; other != "" || len(mac) != macLen || mac[0]&3 != 2 {
			t.Errorf("%s has %s, %q has it too; it has to be unicast and locally administered", text, mac, other)
		}
		seen[mac.String()] = text
	}
}

func TestPeerOf(t *testing.T) {
	whole := func(change func(*v1.Node)) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{
			annotationBackend: VXLAN, annotationAddress: "192.0.2.2,2001:db8::2", annotationMAC: "0A:5A:0a:2a:02:01", "other": "x",
		}}}
		n.Spec.PodCIDRs = []string{"10.42.2.0/24"}
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeExternalIP, Address: "203.0.113.2"}}
		change(n)
		return keep(n)
	}
	p, ok, err := peerOf(whole(func(*v1.Node) {}))
	want := there(func(p *peer) { p.cidrs, p.external = p.cidrs[:1], addrs("203.0.113.2") })
	if !ok || err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v %t %v, want %+v", p, ok, err, want)
	}
	p, _, _ = peerOf(whole(func(n *v1.Node) { n.Annotations[annotationExternal] = "203.0.113.7" }))
	if !slices.Equal(p.external, addrs("203.0.113.7")) {
		t.Errorf("external addresses %v, want the annotation's", p.external)
	}
	for name, change := range map[string]func(*v1.Node){
		"silent":         func(n *v1.Node) { n.Annotations = nil },
		"without a CIDR": func(n *v1.Node) { n.Spec.PodCIDRs = nil },
	} {
		if _, ok, err := peerOf(whole(change)); ok || err != nil {
			t.Errorf("%s: %t %v, want no peer and no error", name, ok, err)
		}
	}
	for name, change := range map[string]func(*v1.Node){
		annotationAddress:  func(n *v1.Node) { n.Annotations[annotationAddress] = "nowhere" },
		annotationExternal: func(n *v1.Node) { n.Annotations[annotationExternal] = "1.2.3" },
		annotationMAC:      func(n *v1.Node) { n.Annotations[annotationMAC] = "0a:5a" },
		"pod CIDR":         func(n *v1.Node) { n.Spec.PodCIDRs = []string{"10.42.2.0"} },
	} {
		if _, ok, err := peerOf(whole(change)); ok || err == nil || !strings.Contains(err.Error(), "node b: its ") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %t %v", name, ok, err)
		}
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	_, err := New(Config{Backend: "ipsec"}, nil)
	if err == nil || !strings.Contains(err.Error(), `"ipsec"`) || !strings.Contains(err.Error(), "NodeName") {
		t.Errorf("got %v", err)
	}
}
