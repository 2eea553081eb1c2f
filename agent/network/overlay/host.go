package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/clusterd/clusterd/internal/hostos"
)

// host is what of this node decides how others are reached.
type host struct {
	addrs, external []netip.Addr // the node's, the primary one first
	gateways        []netip.Addr
	subnets         []subnet
	over            family      // by which nodes send to each other
	mtu             int         // of the interface with the node's address
	key             wgtypes.Key // the public one of its WireGuard tunnel; zero without
}

// subnet is a network that the node is directly connected to.
type subnet struct {
	link int
	net  netip.Prefix
}

// family is IPv4 or IPv6 as the carrier of packets between nodes.
type family struct {
	name string
	is6  bool
	// overhead is what VXLAN adds to a packet in bytes: outer IP and UDP headers,
	// its own, and the inner Ethernet header.
	overhead int
}

var (
	family4 = family{name: "IPv4", overhead: 20 + 8 + 8 + 14}
	family6 = family{name: "IPv6", is6: true, overhead: 40 + 8 + 8 + 14}
)

// look reads the host as it is.
func look(c Config) (host, error) {
	h := host{external: c.External, gateways: c.Pods.Gateways()}
	var err error
	if h.addrs, err = c.Addresses(); err != nil {
		return h, fmt.Errorf("find this node's addresses: %w", err)
	}
	if len(h.gateways) == 0 || len(h.addrs) == 0 {
		return h, errors.New("this node has no address, or its pod network none")
	}
	h.over = carrier(c.ClusterCIDRs, h.addrs)
	if h.mtu, err = hostos.MTU(); err != nil {
		return h, fmt.Errorf("find the MTU of the node's uplink: %w", err)
	}
	return h, h.addLinks()
}

// ownPrefix begins the names of the node's own pod bridge and tunnel.
const ownPrefix = "clusterd"

// addLinks takes in the networks of all interfaces, and the MTU of that which has
// the node's address.
func (h *host) addLinks() error {
	links, err := hostos.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	addrs, err := hostos.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the addresses of all interfaces: %w", err)
	}
	own, _ := of(h.addrs, h.over)
	for _, a := range addrs {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == a.LinkIndex })
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); i < 0 || !ip.IsGlobalUnicast() {
			continue
		}
		if ip == own { // also while its cable is out: that changes no MTU
			h.mtu = links[i].Attrs().MTU
		}
		if ones, _ := a.Mask.Size(); ones < ip.BitLen() && leadsOut(links[i]) {
			h.subnets = append(h.subnets, subnet{a.LinkIndex, netip.PrefixFrom(ip, ones).Masked()})
		}
	}
	return nil
}

func leadsOut(l netlink.Link) bool {
	at := l.Attrs()
	return at.Flags&net.FlagUp != 0 && at.Flags&net.FlagLoopback == 0 && !strings.HasPrefix(at.Name, ownPrefix)
}

// carrier is the family of the cluster's first range if the node has an address
// of it, else the other.
func carrier(clusterCIDRs []netip.Prefix, addrs []netip.Addr) family {
	first, second := family4, family6
	if len(clusterCIDRs) > 0 && clusterCIDRs[0].Addr().Is6() {
		first, second = second, first
	}
	if _, has := of(addrs, first); has {
		return first
	}
	return second
}

// of returns the first address of a family.
func of(addrs []netip.Addr, f family) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is6() == f.is6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

func familyOf(a netip.Addr) family {
	if a.Is6() {
		return family6
	}
	return family4
}

// direct returns the interface by which a is reached without a router.
func (h host) direct(a netip.Addr) (link int, is bool) {
	bits := -1
	for _, s := range h.subnets {
		if s.net.Contains(a) && s.net.Bits() > bits {
			link, bits = s.link, s.net.Bits()
		}
	}
	return link, bits >= 0
}

// wireOverhead is what WireGuard adds to a packet in bytes: outer headers, those of
// IPv6 even where IPv4 carries it since a router on the way may translate, its own,
// and the authenticator.
const wireOverhead = 40 + 8 + 16 + 16

func (h host) podMTU(backend string) int {
	switch backend {
	case VXLAN:
		return h.mtu - h.over.overhead
	case WireGuard:
		return h.mtu - wireOverhead
	}
	return h.mtu
}

// PodMTU is the largest packet in bytes that a pod may send, by the interface
// that has the node's address.
func PodMTU(c Config) (int, error) {
	c.Pods = noPods{}
	h, err := look(c)
	if err != nil {
		return 0, err
	}
	return h.podMTU(c.Backend), nil
}

// noPods is a pod network that is not there yet.
type noPods struct{}

func (noPods) Gateways() []netip.Addr { return []netip.Addr{{}} }
func (noPods) SetMTU(int) error       { return nil }
