package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/hostos"
)

const (
	// routeProtocol marks our routes, so that those of a node that left are found.
	// The number is one that nobody has (see rt_protos of iproute2).
	routeProtocol = 205
	// routeMetric lets any route that the host's owner makes win over ours.
	routeMetric = 1 << 16
)

// apply makes the kernel and w agree with the plan and returns the number of the
// tunnel, 0 for none, and how many changes it took.
func (p plan) apply(w *wireguard) (index, changes int, err error) {
	index, changes, err = p.applyTunnel(w)
	if err != nil {
		return index, changes, err
	}
	steps := []func() (int, error){func() (int, error) { return p.applyRoutes(index) }}
	if p.device != nil { // what a route leads to is there before the route
		steps = slices.Insert(steps, 0,
			func() (int, error) { return p.applyFDB(index) },
			func() (int, error) { return p.applyNeighs(index) })
	}
	for _, step := range steps {
		n, stepErr := step()
		changes, err = changes+n, errors.Join(err, stepErr)
	}
	return index, changes, err
}

// applyTunnel makes the tunnel that is wanted, and takes away any other.
func (p plan) applyTunnel(w *wireguard) (index, changes int, err error) {
	if p.device == nil {
		changes, err = removeDevice(Device)
	} else {
		index, changes, err = p.device.ensure()
	}
	if err != nil {
		return index, changes, err
	}
	var n int
	if p.wire == nil {
		n, err = w.remove()
	} else {
		index, n, err = w.ensure(*p.wire)
	}
	return index, changes + n, err
}

// applyRoutes adds what is missing before it removes what is not wanted: packets
// to a node whose address changed always have a way.
func (p plan) applyRoutes(index int) (changes int, err error) {
	want := slices.Clone(p.routes)
	for i := range want {
		if want[i].link == 0 {
			want[i].link = index
		}
	}
	have, err := ownRoutes()
	if err != nil {
		return 0, err
	}
	for _, r := range want {
		if slices.Contains(have, r) {
			continue
		}
		changes++
		if err := netlink.RouteReplace(r.netlink()); err != nil {
			return changes, fmt.Errorf("route %s: %w", r, err)
		}
	}
	if have, err = ownRoutes(); err != nil {
		return changes, err
	}
	for _, r := range have {
		if slices.Contains(want, r) {
			continue
		}
		changes++
		if err := netlink.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
			return changes, fmt.Errorf("remove the route to %s: %w", r, err)
		}
	}
	return changes, nil
}

// ownRoutes lists the routes that are ours.
func ownRoutes() ([]route, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN}
	list := func() (all []netlink.Route, err error) {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			some, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
			if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
				continue // a kernel without IPv6
			}
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
	all, err := hostos.Dump(list)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []route
	for _, r := range all {
		if r.Dst == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		via, _ := netip.AddrFromSlice(r.Gw)
		src, _ := netip.AddrFromSlice(r.Src)
		out = append(out, route{to: netip.PrefixFrom(to.Unmap(), ones), via: via.Unmap(), src: src.Unmap(), link: r.LinkIndex})
	}
	return out, nil
}

func (r route) String() string {
	if !r.via.IsValid() {
		return r.to.String()
	}
	return r.to.String() + " by " + r.via.String()
}

// netlink is the route as the kernel takes it. The next hop is said to be on the
// link, since on the tunnel it is in no network of it.
func (r route) netlink() *netlink.Route {
	out := &netlink.Route{
		LinkIndex: r.link, Dst: &net.IPNet{IP: r.to.Addr().AsSlice(), Mask: net.CIDRMask(r.to.Bits(), r.to.Addr().BitLen())},
		Priority: routeMetric, Protocol: routeProtocol, Scope: netlink.SCOPE_LINK,
	}
	if r.via.IsValid() {
		out.Gw, out.Scope, out.Flags = r.via.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	if r.src.IsValid() {
		out.Src = r.src.AsSlice()
	}
	return out
}

// applyNeighs makes the permanent neighbours on the tunnel those of the plan.
func (p plan) applyNeighs(index int) (changes int, err error) {
	have := map[netip.Addr]string{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := hostos.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			return 0, fmt.Errorf("list the neighbours on %s: %w", Device, err)
		}
		for _, n := range all {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && n.State&netlink.NUD_PERMANENT != 0 && !ip.IsMulticast() {
				have[ip.Unmap()] = n.HardwareAddr.String()
			}
		}
	}
	return reconcile(p.neighs, have, "neighbour", func(ip netip.Addr, mac string) *netlink.Neigh {
		return entry(index, 0, ip, mac)
	})
}

// applyFDB makes the tunnel's table of nodes' addresses that of the plan.
func (p plan) applyFDB(index int) (changes int, err error) {
	all, err := hostos.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return 0, fmt.Errorf("list the forwarding entries of %s: %w", Device, err)
	}
	have := map[string]netip.Addr{}
	for _, n := range all {
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			have[n.HardwareAddr.String()] = ip.Unmap()
		}
	}
	return reconcile(p.fdb, have, "forwarding entry", func(mac string, ip netip.Addr) *netlink.Neigh {
		return entry(index, unix.AF_BRIDGE, ip, mac)
	})
}

// reconcile sets the entries of want that have lacks or has otherwise, and deletes
// those of have that are not in want.
func reconcile[K, V comparable](want, have map[K]V, what string, make func(K, V) *netlink.Neigh) (changes int, err error) {
	for k, v := range want {
		if old, is := have[k]; is && old == v {
			continue
		}
		changes++
		if err := netlink.NeighSet(make(k, v)); err != nil {
			return changes, fmt.Errorf("set the %s of %v to %v on %s: %w", what, k, v, Device, err)
		}
	}
	for k, v := range have {
		if _, is := want[k]; is {
			continue
		}
		changes++
		if err := netlink.NeighDel(make(k, v)); err != nil && !errors.Is(err, unix.ENOENT) {
			return changes, fmt.Errorf("remove the %s of %v from %s: %w", what, k, Device, err)
		}
	}
	return changes, nil
}

func entry(index, family int, ip netip.Addr, mac string) *netlink.Neigh {
	hw, _ := net.ParseMAC(mac) // was made from one
	n := &netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: hw}
	if family == unix.AF_BRIDGE {
		n.Flags = netlink.NTF_SELF
	}
	return n
}
