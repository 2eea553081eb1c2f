package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network/ipam"
	"github.com/clusterd/clusterd/internal/hostos"
)

// macOf derives a MAC from an address: locally administered, like kubenet's.
// When an address comes to another pod, whoever still has the old pod's MAC in
// a neighbour table has the right one.
func macOf(a netip.Addr) net.HardwareAddr {
	tail := a.As16()
	if a.Is4() {
		return append(net.HardwareAddr{0x0a, 0x58}, tail[12:]...)
	}
	sum := sha256.Sum256(tail[:])
	return append(net.HardwareAddr{0x0a, 0x59}, sum[:4]...)
}

// plug makes the cable between the bridge and the pod and sets up the pod's end.
// The pod's end is created in its namespace: moving it there would wait for an
// RCU grace period. The calling thread stays in its own namespace.
func plug(a ipam.Allocation, bridge string, mtu int) error {
	ns, err := netns.GetFromPath(a.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", a.NetNS, err)
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", a.NetNS, err)
	}
	defer pod.Close()
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()

	if err := cable(host, ns, a, bridge, mtu); err != nil {
		return err
	}
	if err := setUpPod(pod, a); err != nil {
		return fmt.Errorf("set up %s in network namespace %s: %w", a.IfName, a.NetNS, err)
	}
	return errors.Join(awaitCarrier(host, a.HostVeth), awaitCarrier(host, bridge))
}

const (
	carrierTimeout = 2 * time.Second
	carrierPause   = time.Millisecond
)

// awaitCarrier returns when an interface really passes packets. The kernel tells
// the bridge of a new carrier from a work queue; until then it drops what the pod
// sends, and the pod's first ARP request is repeated only after a second. Since
// Linux 6.9 the question alone brings it about.
func awaitCarrier(h *netlink.Handle, name string) error {
	tick := time.NewTicker(carrierPause)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("wait for the carrier of %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Since(began) > carrierTimeout {
			return fmt.Errorf("interface %s is %s after %v, want up", name, link.Attrs().OperState, carrierTimeout)
		}
	}
}

// cable makes the pair, the node's end up and on the bridge.
func cable(host *netlink.Handle, ns netns.NsHandle, a ipam.Allocation, bridge string, mtu int) error {
	br, err := host.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = a.HostVeth, mtu, net.FlagUp
	attrs.MasterIndex, attrs.Alias = br.Attrs().Index, a.ContainerID
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1 // the default is one a CPU, each with its memory
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = a.IfName, netlink.NsFd(ns)
	veth.PeerHardwareAddr = macOf(a.Addresses[0].Addr())

	if err := addLink(host, veth); err != nil {
		return fmt.Errorf("make cable %s to %s: %w", a.HostVeth, a.NetNS, err)
	}
	// A pod that reaches itself through a Service gets its packet back by this.
	if err := host.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin on %s: %w", a.HostVeth, err)
	}
	// The node's end needs no address of its own. Kernels without IPv6 refuse this.
	_ = host.LinkSetIP6AddrGenMode(veth, nl6AddrGenNone)
	return nil
}

// nl6AddrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const nl6AddrGenNone = 1

// addLink makes veth; one of the same name is what a killed process left.
func addLink(host *netlink.Handle, veth *netlink.Veth) error {
	err := host.LinkAdd(veth)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := unplug(veth.Name); err != nil {
		return err
	}
	return host.LinkAdd(veth)
}

func setUpPod(pod *netlink.Handle, a ipam.Allocation) error {
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}} // always, in every namespace
	if err := pod.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	link, err := pod.LinkByName(a.IfName)
	if err != nil {
		return err
	}
	for _, p := range a.Addresses {
		if err := pod.AddrAdd(link, interfaceAddr(p)); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	if err := pod.LinkSetUp(link); err != nil {
		return err
	}
	for _, p := range a.Addresses {
		gw := gatewayOf(p)
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(defaultRoute(gw)), Gw: gw.AsSlice()}
		if err := pod.RouteAdd(route); err != nil {
			return fmt.Errorf("default route by %s: %w", gw, err)
		}
	}
	return nil
}

// unplug removes a cable by the name of the node's end; none is a success.
func unplug(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if isNoLink(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cable %s: %w", name, err)
	}
	return nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// verify compares a pod's interface with its record.
func (n *Network) verify(a ipam.Allocation) error {
	bridge, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return fmt.Errorf("check sandbox %s: bridge %s: %w", a.ContainerID, n.cfg.Bridge, err)
	}
	veth, err := netlink.LinkByName(a.HostVeth)
	if err != nil {
		return fmt.Errorf("check sandbox %s: cable %s: %w", a.ContainerID, a.HostVeth, err)
	}
	if veth.Attrs().MasterIndex != bridge.Attrs().Index {
		return fmt.Errorf("check sandbox %s: cable %s is not on bridge %s", a.ContainerID, a.HostVeth, n.cfg.Bridge)
	}
	has, err := podAddresses(a.NetNS, a.IfName)
	if err != nil {
		return fmt.Errorf("check sandbox %s: %w", a.ContainerID, err)
	}
	for _, p := range a.Addresses {
		if !slices.Contains(has, p) {
			return fmt.Errorf("check sandbox %s: %s has %v, not %s", a.ContainerID, a.IfName, has, p)
		}
	}
	return nil
}

// podAddresses returns the global addresses of an interface in a namespace.
func podAddresses(path, ifName string) ([]netip.Prefix, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer pod.Close()
	link, err := pod.LinkByName(ifName)
	if err != nil {
		return nil, fmt.Errorf("find %s in network namespace %s: %w", ifName, path, err)
	}
	return globalAddresses(pod, link)
}

func globalAddresses(h *netlink.Handle, link netlink.Link) ([]netip.Prefix, error) {
	addrs, err := hostos.Dump(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ip = ip.Unmap(); ip.IsGlobalUnicast() {
			out = append(out, netip.PrefixFrom(ip, ones))
		}
	}
	return out, nil
}

// interfaceAddr is p without duplicate address detection, for which a pod would
// have to wait a second: the ledger knows that nobody else has it.
func interfaceAddr(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
