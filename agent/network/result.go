package network

import (
	"net/netip"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// result is the answer to ADD in the form of CNI 1.0.0.
type result struct {
	Version    string        `json:"cniVersion"`
	Interfaces []resultIf    `json:"interfaces"`
	IPs        []resultIP    `json:"ips"`
	Routes     []resultRoute `json:"routes"`
	DNS        struct{}      `json:"dns"`
}

type resultIf struct {
	Name    string `json:"name"`
	Mac     string `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

type resultIP struct {
	Interface int          `json:"interface"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway"`
}

type resultRoute struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw"`
}

// podInterface is the place of the pod's own interface in result.Interfaces.
const podInterface = 2

// newResult describes a: the bridge, the node's end of the cable, the pod's end.
func newResult(bridge string, a ipam.Allocation) result {
	r := result{Version: cniVersion, Interfaces: []resultIf{
		{Name: bridge},
		{Name: a.HostVeth},
		{Name: a.IfName, Mac: macOf(a.Addresses[0].Addr()).String(), Sandbox: a.NetNS},
	}}
	for _, p := range a.Addresses {
		gw := gatewayOf(p)
		r.IPs = append(r.IPs, resultIP{Interface: podInterface, Address: p, Gateway: gw})
		r.Routes = append(r.Routes, resultRoute{Dst: defaultRoute(gw), GW: gw})
	}
	return r
}

// gatewayOf returns the node's own address in the prefix of a pod's address.
func gatewayOf(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

func defaultRoute(gw netip.Addr) netip.Prefix {
	if gw.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
