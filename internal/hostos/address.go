package hostos

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// defaultMTU is what a host without any usable link is taken to have: Ethernet's.
const defaultMTU = 1500

// ErrNoAddress is returned when no interface that is up has a global unicast address.
var ErrNoAddress = errors.New("no interface that is up has a usable address: give one with --node-ip")

// notUplinks are name prefixes of links that container and virtual machine managers make: their addresses are not
// reachable from elsewhere.
var notUplinks = []string{"clusterd", "cni", "docker", "flannel", "kube-", "veth", "virbr"}

// link is a network interface; addrs are its global unicast addresses.
type link struct {
	index, mtu int
	name       string
	addrs      []netip.Addr
}

// route is a default route. src is invalid when the route does not name a source address.
type route struct {
	link, metric int
	v6           bool
	src          netip.Addr
}

// NodeAddress is the address by which others reach this host: the source address of the default route, IPv4 before
// IPv6, else the first global unicast address of an interface that is up. Without any it returns ErrNoAddress.
func NodeAddress() (netip.Addr, error) {
	all, err := NodeAddresses()
	if err != nil {
		return netip.Addr{}, err
	}
	return all[0], nil
}

// NodeAddresses are NodeAddress's choice for IPv4 and for IPv6, in this order, of the families that the host has.
// Without any it returns ErrNoAddress.
func NodeAddresses() ([]netip.Addr, error) { return thisHost().nodeAddresses() }

// MTU is the maximum transmission unit in bytes of the interface that carries NodeAddress, 1500 when there is none.
func MTU() (int, error) { return thisHost().mtu() }

func (s system) nodeAddresses() ([]netip.Addr, error) {
	up, err := s.uplinks()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, u := range up {
		found = append(found, u.addr)
	}
	if found == nil {
		return nil, ErrNoAddress
	}
	return found, nil
}

func (s system) mtu() (int, error) {
	up, err := s.uplinks()
	if err != nil || len(up) == 0 {
		return defaultMTU, err
	}
	return up[0].link.mtu, nil
}

// uplink is the link that leads out of the host for one address family.
type uplink struct {
	link link
	addr netip.Addr
}

func (s system) uplinks() ([]uplink, error) {
	links, err := s.links()
	if err != nil {
		return nil, err
	}
	routes, err := s.routes()
	if err != nil {
		return nil, err
	}
	var up []uplink
	for _, v6 := range []bool{false, true} {
		if u, ok := chooseUplink(links, routes, v6); ok {
			up = append(up, u)
		}
	}
	return up, nil
}

// chooseUplink takes the default route with the lowest metric whose link has an address, else the first such link.
func chooseUplink(links []link, routes []route, v6 bool) (uplink, bool) {
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(a, b route) int { return cmp.Compare(a.metric, b.metric) })
	for _, r := range routes {
		i := slices.IndexFunc(links, func(l link) bool { return l.index == r.link })
		if i < 0 || r.v6 != v6 {
			continue
		}
		if r.src.IsValid() {
			return uplink{links[i], r.src}, true
		}
		if a, ok := links[i].first(v6); ok {
			return uplink{links[i], a}, true
		}
	}
	return firstUplink(links, v6)
}

func firstUplink(links []link, v6 bool) (uplink, bool) {
	for _, l := range links {
		if slices.ContainsFunc(notUplinks, func(prefix string) bool { return strings.HasPrefix(l.name, prefix) }) {
			continue
		}
		if a, ok := l.first(v6); ok {
			return uplink{l, a}, true
		}
	}
	return uplink{}, false
}

func (l link) first(v6 bool) (netip.Addr, bool) {
	for _, a := range l.addrs {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// hostLinks are the interfaces that are up, without loopback, in the order of their index.
func hostLinks() ([]link, error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var links []link
	for _, i := range ifaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		links = append(links, link{index: i.Index, mtu: i.MTU, name: i.Name, addrs: globals(addrs)})
	}
	return links, nil
}

func globals(addrs []net.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().IsGlobalUnicast() {
			found = append(found, p.Addr().Unmap())
		}
	}
	return found
}

func defaultRoutes() ([]route, error) {
	var found []route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range all {
			if leadsOut(r) {
				found = append(found, newRoute(r, family == netlink.FAMILY_V6))
			}
		}
	}
	return found, nil
}

// leadsOut is whether r is a default route over a link, not one that rejects or discards.
func leadsOut(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

func newRoute(r netlink.Route, v6 bool) route {
	index := r.LinkIndex
	if index == 0 && len(r.MultiPath) > 0 {
		index = r.MultiPath[0].LinkIndex
	}
	src, _ := netip.AddrFromSlice(r.Src)
	return route{link: index, metric: r.Priority, v6: v6, src: src.Unmap()}
}
