package network

import (
	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// forgetFlows ends what the kernel remembers of connectionless traffic to ports
// that changed hands: a client that goes on sending from the same port would
// otherwise reach the former pod, or nobody, for as long as it does not pause.
func (n *Network) forgetFlows(ports []ipam.Port) {
	var filters []netlink.CustomConntrackFilter
	for _, p := range ports {
		if p.Protocol == "tcp" {
			continue
		}
		f := &netlink.ConntrackFilter{}
		err := f.AddProtocol(protocols[p.Protocol])
		if err == nil {
			err = f.AddPort(netlink.ConntrackOrigDstPort, p.HostPort)
		}
		if err == nil {
			filters = append(filters, f)
		}
	}
	if len(filters) == 0 {
		return
	}
	for _, own := range n.ledger.Prefixes() {
		family := netlink.InetFamily(netlink.FAMILY_V4)
		if own.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...); err != nil {
			n.log.Debug("forget flows to changed hostPorts", "error", err)
		}
	}
}
