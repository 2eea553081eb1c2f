package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/hostos"
)

// VNI and UDP port of the tunnel. They are flannel's on Linux, which firewalls and
// networks that carry a k3s cluster let through already. (The port that IANA gave
// to VXLAN is 4789; 8472 is the one that Linux took before and still defaults to.)
const (
	vni  = 1
	port = 8472
)

// The UDP packets keep their checksums, which is the kernel's default: what was
// wrong with them came from translating their addresses, and neither our packet
// rules (they look for pods' addresses, and these are the nodes') nor kube-proxy's
// (it takes its mark off) do that.

// alias says by what the tunnel goes. The kernel does not tell that of a VXLAN
// device without addresses of its own, which this one has not so that a change of
// the node's address does not touch it.
func (d device) alias() string { return "clusterd: pods of other nodes, over " + d.over.name }

// ensure makes the device, or brings the one that is there to the wanted state;
// one that is too different is made again.
func (d device) ensure() (index, changes int, err error) {
	link, err := netlink.LinkByName(Device)
	if err == nil && !d.is(link) {
		changes++
		if err := netlink.LinkDel(link); err != nil {
			return 0, changes, fmt.Errorf("remove %s, which is not as it should be: %w", Device, err)
		}
		link, err = nil, netlink.LinkNotFoundError{}
	}
	if isNoLink(err) {
		changes++
		link, err = d.make()
	}
	if err != nil {
		return 0, changes, fmt.Errorf("make %s: %w", Device, err)
	}
	n, err := setUp(link, d.mtu, d.own)
	return link.Attrs().Index, changes + n, err
}

// is tells whether what cannot be changed later is right.
func (d device) is(link netlink.Link) bool {
	v, is := link.(*netlink.Vxlan)
	return is && v.VxlanId == vni && v.Port == port && !v.Learning && v.Alias == d.alias() && v.HardwareAddr.String() == d.mac
}

func (d device) make() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = Device, d.mtu
	attrs.HardwareAddr, _ = net.ParseMAC(d.mac)
	v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vni, Port: port}
	if d.over.is6 {
		v.Group = net.IPv6unspecified // no group, but the family
	}
	err := netlink.LinkAdd(v)
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("another VXLAN interface%s has VNI %d on UDP port %d: remove it, or choose --flannel-backend host-gw", holder(), vni, port)
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("UDP port %d is used by somebody else: free it, or choose --flannel-backend host-gw", port)
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, errors.New("this kernel has no VXLAN: load the module vxlan, or choose --flannel-backend host-gw")
	case err != nil:
		return nil, err
	}
	if err := netlink.LinkSetAlias(v, d.alias()); err != nil { // the kernel takes none with LinkAdd
		return nil, fmt.Errorf("set the alias: %w", err)
	}
	if err := refuseAutoAddresses(v); err != nil {
		return nil, err
	}
	return netlink.LinkByName(Device)
}

// refuseAutoAddresses keeps addresses from a tunnel that the kernel makes up, and
// what routers advertise: what pods send has addresses. Kernels without IPv6 refuse
// both.
func refuseAutoAddresses(link netlink.Link) error {
	_ = netlink.LinkSetIP6AddrGenMode(link, addrGenNone)
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link.Attrs().Name+"/accept_ra", []byte("0"), 0o644)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("refuse router advertisements: %w", err)
	}
	return nil
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// holder names the interface that has our VNI and port.
func holder() string {
	links, _ := hostos.Dump(netlink.LinkList)
	for _, l := range links {
		if v, is := l.(*netlink.Vxlan); is && v.VxlanId == vni && v.Port == port {
			return " (" + v.Name + ")"
		}
	}
	return ""
}

// setUp brings what can be changed on a device in use to the wanted state.
func setUp(link netlink.Link, mtu int, own []netip.Addr) (changes int, err error) {
	name := link.Attrs().Name
	if link.Attrs().MTU != mtu {
		changes++
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return changes, fmt.Errorf("set MTU %d on %s: %w", mtu, name, err)
		}
	}
	n, err := setAddresses(link, own)
	if changes += n; err != nil {
		return changes, err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		changes++
		if err := netlink.LinkSetUp(link); err != nil {
			return changes, fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return changes, nil
}

// setAddresses gives the device the node's addresses in its pods' network, each
// alone: they bring no route.
func setAddresses(link netlink.Link, own []netip.Addr) (changes int, err error) {
	name := link.Attrs().Name
	all, err := hostos.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var have []netip.Addr
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); slices.Contains(own, ip) || !ip.IsGlobalUnicast() {
			have = append(have, ip)
			continue
		}
		changes++
		if err := netlink.AddrDel(link, &a); err != nil {
			return changes, fmt.Errorf("take %s from %s: %w", ip, name, err)
		}
	}
	for _, ip := range own {
		if slices.Contains(have, ip) {
			continue
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}}
		if ip.Is6() {
			a.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
		}
		changes++
		if err := netlink.AddrAdd(link, a); err != nil {
			return changes, fmt.Errorf("give %s to %s: %w", ip, name, err)
		}
	}
	return changes, nil
}

func removeDevice(name string) (changes int, err error) {
	link, err := netlink.LinkByName(name)
	if isNoLink(err) {
		return 0, nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", name, err)
	}
	return 1, nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}
