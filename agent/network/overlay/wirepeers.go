package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// wire is the WireGuard tunnel as it should be.
type wire struct {
	mtu   int
	own   []netip.Addr // the node's addresses in its pods' network
	addrs []netip.Addr // by which other nodes see it
	peers []wirePeer
}

// wirePeer is another node's end of the tunnel.
type wirePeer struct {
	key     wgtypes.Key
	at      netip.Addr
	allowed []netip.Prefix // its pods
	// near is on a network of this node: between the two is nothing that translates
	// addresses and has to be kept from forgetting them.
	near bool
}

func (w wire) equal(v wire) bool {
	return w.mtu == v.mtu && slices.Equal(w.own, v.own) && slices.Equal(w.addrs, v.addrs) &&
		slices.EqualFunc(w.peers, v.peers, func(a, b wirePeer) bool {
			return a.key == b.key && a.at == b.at && a.near == b.near && slices.Equal(a.allowed, b.allowed)
		})
}

// addWire leads to a peer's pods through the WireGuard tunnel.
func (w *plan) addWire(h host, p peer) (problems []string) {
	at, has := h.reach(p)
	switch {
	case !has:
		return []string{fmt.Sprintf("it has no %s address, by which nodes send to each other: give it one with --node-ip", h.over.name)}
	case slices.Contains(h.addrs, at):
		return []string{fmt.Sprintf("it says that its address is %s, which is this node's: give one of them another, or delete the Node if it is gone", at)}
	case p.key == (wgtypes.Key{}):
		return []string{"it has told no WireGuard key: restart clusterd there"}
	case p.key == h.key:
		return []string{"it has this node's WireGuard key: one is a copy of the other; remove agent/tls/wireguard.key from the data directory of one, and restart clusterd there"}
	case w.wire != nil && slices.ContainsFunc(w.wire.peers, func(q wirePeer) bool { return q.key == p.key }):
		return []string{"its WireGuard key is another node's: remove agent/tls/wireguard.key from its data directory, and restart clusterd there"}
	}
	if w.wire == nil {
		w.wire = &wire{mtu: h.podMTU(WireGuard), own: h.gateways, addrs: h.addrs}
	}
	_, near := h.direct(at)
	w.wire.peers = append(w.wire.peers, wirePeer{key: p.key, at: at, allowed: p.cidrs, near: near})
	for _, cidr := range p.cidrs {
		if src, has := of(h.gateways, familyOf(cidr.Addr())); has {
			w.routes = append(w.routes, route{to: cidr, src: src})
		}
	}
	return nil
}

func (p wirePeer) endpoint() netip.AddrPort { return netip.AddrPortFrom(p.at, wirePort) }

// keepalive is how often an idle tunnel says something, so that a router on the way
// that translates addresses goes on letting the other side in. It is flannel's.
const keepalive = 25 * time.Second

func (p wirePeer) keepalive() time.Duration {
	if p.near {
		return 0
	}
	return keepalive
}

// config is what makes the peer; its endpoint is left as it is where that was not changed.
func (p wirePeer) config(endpoint bool) wgtypes.PeerConfig {
	every := p.keepalive()
	c := wgtypes.PeerConfig{PublicKey: p.key, PersistentKeepaliveInterval: &every, ReplaceAllowedIPs: true}
	if endpoint {
		c.Endpoint = net.UDPAddrFromAddrPort(p.endpoint())
	}
	for _, a := range p.allowed {
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())})
	}
	return c
}

// fresh is how long a session of WireGuard lives: with a younger one the other side is where it was last heard.
const fresh = 3 * time.Minute

// peerChanges is what makes the peers of a tunnel the wanted ones. told is where this
// process has said that they are.
//
// A peer behind a router is where its packets come from, which is not what it says
// of itself: its endpoint is set only when what it says has changed, and of one that
// an earlier process knew when nothing has been heard of it.
func peerChanges(want []wirePeer, have []wgtypes.Peer, told map[wgtypes.Key]netip.AddrPort) (out []wgtypes.PeerConfig) {
	for _, old := range have { // first: somebody else may have its pods' addresses now
		if !slices.ContainsFunc(want, func(p wirePeer) bool { return p.key == old.PublicKey }) {
			out = append(out, wgtypes.PeerConfig{PublicKey: old.PublicKey, Remove: true})
		}
	}
	for _, p := range want {
		i := slices.IndexFunc(have, func(old wgtypes.Peer) bool { return old.PublicKey == p.key })
		if i < 0 {
			out = append(out, p.config(true))
			continue
		}
		old := have[i]
		at, known := told[p.key]
		moved := known && at != p.endpoint() || !known && time.Since(old.LastHandshakeTime) > fresh
		if moved || old.PersistentKeepaliveInterval != p.keepalive() || !sameNets(old.AllowedIPs, p.allowed) {
			out = append(out, p.config(moved))
		}
	}
	return out
}

func sameNets(have []net.IPNet, want []netip.Prefix) bool {
	var a, b []string
	for _, n := range have {
		a = append(a, n.String())
	}
	for _, p := range want {
		b = append(b, p.String())
	}
	slices.Sort(a)
	slices.Sort(b)
	return strings.Join(a, ",") == strings.Join(b, ",")
}
