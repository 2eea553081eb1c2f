package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// plan is what should be in the kernel.
type plan struct {
	device *device // nil: none
	wire   *wire   // nil: none
	routes []route
	neighs map[netip.Addr]string // MACs by address, on the device
	fdb    map[string]netip.Addr // nodes' addresses by MAC, on the device
}

// device is the VXLAN tunnel.
type device struct {
	mac  string
	over family
	mtu  int
	own  []netip.Addr // the node's addresses in its pods' network
}

// route leads to the pods of one node. link is 0 for the tunnel, whose number is
// not known before it is made.
type route struct {
	to       netip.Prefix
	via, src netip.Addr
	link     int
}

func (p plan) equal(q plan) bool {
	same := p.device == nil && q.device == nil
	if p.wire != nil && q.wire != nil {
		same = same && p.wire.equal(*q.wire)
	} else {
		same = same && p.wire == nil && q.wire == nil
	}
	if p.device != nil && q.device != nil {
		a, b := *p.device, *q.device
		same = a.mac == b.mac && a.over == b.over && a.mtu == b.mtu && slices.Equal(a.own, b.own)
	}
	return same && slices.Equal(p.routes, q.routes) && maps.Equal(p.neighs, q.neighs) && maps.Equal(p.fdb, q.fdb)
}

// plan decides how each of the peers is reached, and says which cannot be.
func (h host) plan(backend string, peers []peer) (want plan, odd []string) {
	want = plan{neighs: map[netip.Addr]string{}, fdb: map[string]netip.Addr{}}
	slices.SortFunc(peers, func(a, b peer) int { return strings.Compare(a.name, b.name) })
	for _, p := range peers {
		var problems []string
		switch {
		case backend == None:
		case p.backend != backend:
			problems = []string{fmt.Sprintf("its backend is %s, here it is %s: restart clusterd on the node that was not restarted since --flannel-backend changed", p.backend, backend)}
		case backend == VXLAN:
			problems = want.addTunnel(h, p)
		case backend == WireGuard:
			problems = want.addWire(h, p)
		default:
			problems = want.addDirect(h, p)
		}
		for _, problem := range problems {
			odd = append(odd, fmt.Sprintf("node %s: %s", p.name, problem))
		}
	}
	if len(want.fdb) > 0 {
		want.device = &device{mac: tunnelMAC(h.gateways[0]).String(), over: h.over, mtu: h.podMTU(VXLAN), own: h.gateways}
	}
	return want, odd
}

// addTunnel leads to a peer's pods through the tunnel.
func (w *plan) addTunnel(h host, p peer) (problems []string) {
	at, has := h.reach(p)
	switch {
	case !has:
		return []string{fmt.Sprintf("it has no %s address, by which nodes send to each other: give it one with --node-ip", h.over.name)}
	case slices.Contains(h.addrs, at):
		return []string{fmt.Sprintf("it says that its address is %s, which is this node's: give one of them another, or delete the Node if it is gone", at)}
	case p.mac == "":
		return []string{"it has told no MAC: restart clusterd there"}
	case w.fdb[p.mac].IsValid():
		return []string{"its MAC is another node's: restart clusterd there"}
	}
	w.fdb[p.mac] = at
	for _, cidr := range p.cidrs {
		src, has := of(h.gateways, familyOf(cidr.Addr()))
		if !has {
			continue // this node's pods have no such address
		}
		via := cidr.Addr().Next() // the node's own, as here
		w.neighs[via] = p.mac
		w.routes = append(w.routes, route{to: cidr, via: via, src: src})
	}
	return nil
}

// reach chooses a peer's address: its own where it is on a network of this node
// or has no other, else the one for nodes elsewhere.
func (h host) reach(p peer) (netip.Addr, bool) {
	inside, hasInside := of(p.addrs, h.over)
	outside, hasOutside := of(p.external, h.over)
	if _, is := h.direct(inside); hasInside && is || !hasOutside {
		return inside, hasInside
	}
	return outside, true
}

// addDirect leads to a peer's pods by the peer itself, without a tunnel.
func (w *plan) addDirect(h host, p peer) (problems []string) {
	for _, cidr := range p.cidrs {
		src, has := of(h.gateways, familyOf(cidr.Addr()))
		if !has {
			continue
		}
		via, has := of(p.addrs, familyOf(cidr.Addr()))
		link, direct := h.direct(via)
		switch {
		case !has:
			problems = append(problems, fmt.Sprintf("it has no %s address for its pods %s: give it one with --node-ip", familyOf(cidr.Addr()).name, cidr))
		case slices.Contains(h.addrs, via):
			problems = append(problems, fmt.Sprintf("it says that its address is %s, which is this node's: give one of them another, or delete the Node if it is gone", via))
		case !direct:
			problems = append(problems, fmt.Sprintf("its address %s is on no network of this node, which host-gw needs: its pods %s are not reached; use --flannel-backend vxlan", via, cidr))
		default:
			w.routes = append(w.routes, route{to: cidr, via: via, src: src, link: link})
		}
	}
	return problems
}
