package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/hostos"
)

// ensureBridge makes the bridge, or brings the one that is there to the wanted
// state without taking it down: pods hang on it.
func ensureBridge(name string, mtu int, addrs []netip.Prefix) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if isNoLink(err) {
		if err = netlink.LinkAdd(newBridge(name, mtu, addrs)); err == nil {
			link, err = netlink.LinkByName(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("interface %s is a %s, not a bridge: remove it or choose another name", name, link.Type())
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set MTU %d on bridge %s: %w", mtu, name, err)
		}
	}
	for _, p := range addrs {
		if err := netlink.AddrAdd(link, interfaceAddr(p)); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("give %s to bridge %s: %w", p, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return link, nil
}

// newBridge has a MAC of its own: otherwise it would take the lowest of its
// ports' and change it whenever pods come and go. Without multicast snooping
// there are no queriers' timers, and neighbour discovery is simply flooded.
func newBridge(name string, mtu int, addrs []netip.Prefix) *netlink.Bridge {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, mtu, macOf(addrs[0].Addr())
	snooping := false
	return &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
}

// keepBridgeAddresses removes addresses of former pod CIDRs from the bridge, but
// not those that running pods still have as their gateway.
func (n *Network) keepBridgeAddresses() error {
	link, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	addrs, err := hostos.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the addresses of bridge %s: %w", n.cfg.Bridge, err)
	}
	wanted := n.ledger.Gateways()
	for _, a := range n.ledger.All() {
		for _, p := range a.Addresses {
			wanted = append(wanted, gatewayOf(p))
		}
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ip.IsGlobalUnicast() || slices.Contains(wanted, ip) {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("take %s from bridge %s: %w", ip, n.cfg.Bridge, err)
		}
	}
	return nil
}

// serviceMetric lets any route that the host's owner makes win over ours.
const serviceMetric = 1 << 16

// routeServices gives the node a way to addresses that exist only as translations.
func routeServices(bridge netlink.Link, ranges []netip.Prefix) error {
	var errs []error
	for _, p := range ranges {
		r := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: ipNet(p.Masked()), Priority: serviceMetric}
		if p.Addr().Is4() {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("route Services %s to bridge %s: %w", p, bridge.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}
