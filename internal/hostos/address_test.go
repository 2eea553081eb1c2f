package hostos

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func addrs(text ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range text {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestNodeAddresses(t *testing.T) {
	eth0 := link{index: 2, mtu: 1400, name: "eth0", addrs: addrs("192.0.2.5", "192.0.2.6", "fd00::5")}
	eth1 := link{index: 3, mtu: 9000, name: "eth1", addrs: addrs("198.51.100.5")}
	bare := link{index: 4, mtu: 1500, name: "eth2"}
	pods := link{index: 1, mtu: 1450, name: "clusterd0", addrs: addrs("10.42.0.1", "fd42::1")}
	for _, row := range []struct {
		name   string
		links  []link
		routes []route
		want   []netip.Addr
		mtu    int
	}{
		{"default route", []link{eth0, eth1}, []route{{link: 3}}, addrs("198.51.100.5", "fd00::5"), 9000},
		{"lowest metric", []link{eth0, eth1}, []route{{link: 3, metric: 100}, {link: 2, metric: 50}}, addrs("192.0.2.5", "fd00::5"), 1400},
		{"source of the route", []link{eth0}, []route{{link: 2, src: addrs("192.0.2.6")[0]}}, addrs("192.0.2.6", "fd00::5"), 1400},
		{"route over a link without address", []link{bare, eth1}, []route{{link: 4}}, addrs("198.51.100.5"), 9000},
		{"route over a link that is down", []link{eth1}, []route{{link: 2}}, addrs("198.51.100.5"), 9000},
		{"no route", []link{eth0, eth1}, nil, addrs("192.0.2.5", "fd00::5"), 1400},
		{"only a route for IPv6", []link{eth1, eth0}, []route{{link: 2, v6: true}}, addrs("198.51.100.5", "fd00::5"), 9000},
		{"not the pods' bridge", []link{pods, eth1}, nil, addrs("198.51.100.5"), 9000},
		{"nothing", []link{pods, bare}, nil, nil, 1500},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := system{
				links:  func() ([]link, error) { return row.links, nil },
				routes: func() ([]route, error) { return row.routes, nil },
			}
			got, err := s.nodeAddresses()
			if !slices.Equal(got, row.want) || (row.want == nil) != errors.Is(err, ErrNoAddress) {
				t.Errorf("got %v, %v, want %v", got, err, row.want)
			}
			if mtu, err := s.mtu(); mtu != row.mtu || err != nil {
				t.Errorf("MTU %d, %v, want %d", mtu, err, row.mtu)
			}
		})
	}
}

func TestNodeAddressErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, s := range []system{
		{links: func() ([]link, error) { return nil, broken }},
		{links: func() ([]link, error) { return nil, nil }, routes: func() ([]route, error) { return nil, broken }},
	} {
		if _, err := s.nodeAddresses(); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		if _, err := s.mtu(); !errors.Is(err, broken) {
			t.Errorf("MTU: got %v", err)
		}
	}
}

func TestLeadsOut(t *testing.T) {
	network := func(cidr string) *net.IPNet {
		_, n, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, row := range []struct {
		name string
		r    netlink.Route
		want bool
	}{
		{"no destination", netlink.Route{Type: unix.RTN_UNICAST}, true},
		{"zero prefix", netlink.Route{Type: unix.RTN_UNICAST, Dst: network("0.0.0.0/0")}, true},
		{"zero prefix of IPv6", netlink.Route{Type: unix.RTN_UNICAST, Dst: network("::/0")}, true},
		{"a network", netlink.Route{Type: unix.RTN_UNICAST, Dst: network("10.0.0.0/8")}, false},
		{"unreachable", netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: network("::/0")}, false},
	} {
		if got := leadsOut(row.r); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
	r := newRoute(netlink.Route{Src: net.ParseIP("192.0.2.6"), Priority: 7, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 5}}}, false)
	if r != (route{link: 5, metric: 7, src: addrs("192.0.2.6")[0]}) {
		t.Errorf("got %+v", r)
	}
}

// TestThisHost reads the real tables; every machine that runs tests has at least a loopback interface.
func TestThisHost(t *testing.T) {
	if mtu, err := MTU(); err != nil || mtu < 576 {
		t.Errorf("MTU %d, %v", mtu, err)
	}
	all, err := NodeAddresses()
	if errors.Is(err, ErrNoAddress) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	first, err := NodeAddress()
	if err != nil || first != all[0] || !first.IsGlobalUnicast() {
		t.Errorf("got %v of %v, %v", first, all, err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(first, 0).String())
	if err != nil {
		t.Fatalf("the address is not of this host: %v", err)
	}
	l.Close()
}
