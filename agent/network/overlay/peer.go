package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations by which a node tells the others how its pods are reached:
// the backend, its addresses, those for nodes elsewhere, and of its tunnel the MAC
// with VXLAN or the public key with WireGuard. A list is separated by commas.
const (
	annotationBackend  = "clusterd.io/network-backend"
	annotationAddress  = "clusterd.io/network-address"
	annotationExternal = "clusterd.io/network-external-address"
	annotationMAC      = "clusterd.io/network-mac"
	annotationKey      = "clusterd.io/network-public-key"
)

var annotations = []string{annotationBackend, annotationAddress, annotationExternal, annotationMAC, annotationKey}

// peer is another node, as it has told.
type peer struct {
	name, backend   string
	cidrs           []netip.Prefix // of its pods
	addrs, external []netip.Addr
	mac             string
	key             wgtypes.Key
}

// keep is the part of a Node that matters here.
func keep(n *v1.Node) *v1.Node {
	small := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}
	small.Spec.PodCIDRs = n.Spec.PodCIDRs
	for _, a := range n.Status.Addresses {
		if a.Type == v1.NodeExternalIP {
			small.Status.Addresses = append(small.Status.Addresses, a)
		}
	}
	for _, name := range annotations {
		if value, has := n.Annotations[name]; has {
			metav1.SetMetaDataAnnotation(&small.ObjectMeta, name, value)
		}
	}
	return small
}

// peerOf reads what a node has told. One that has not told anything yet, or has
// no pod CIDR yet, is none, which is no error.
func peerOf(n *v1.Node) (p peer, ok bool, err error) {
	if n.Annotations[annotationBackend] == "" || len(n.Spec.PodCIDRs) == 0 {
		return peer{}, false, nil
	}
	p = peer{name: n.Name, backend: n.Annotations[annotationBackend]}
	problem := func(what, text string) (peer, bool, error) {
		return peer{}, false, fmt.Errorf("node %s: its %s is %q: restart clusterd there, which writes it again", n.Name, what, text)
	}
	if p.addrs, err = parseAddrs(n.Annotations[annotationAddress]); err != nil {
		return problem("annotation "+annotationAddress, n.Annotations[annotationAddress])
	}
	if p.external, err = parseAddrs(n.Annotations[annotationExternal]); err != nil {
		return problem("annotation "+annotationExternal, n.Annotations[annotationExternal])
	}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && n.Annotations[annotationExternal] == "" {
			p.external = append(p.external, ip.Unmap())
		}
	}
	if text := n.Annotations[annotationMAC]; text != "" {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != macLen {
			return problem("annotation "+annotationMAC, text)
		}
		p.mac = mac.String()
	}
	if text := n.Annotations[annotationKey]; text != "" {
		if p.key, err = wgtypes.ParseKey(text); err != nil {
			return problem("annotation "+annotationKey, text)
		}
	}
	for _, text := range n.Spec.PodCIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return problem("pod CIDR", text)
		}
		p.cidrs = append(p.cidrs, cidr.Masked())
	}
	return p, true, nil
}

func parseAddrs(text string) (all []netip.Addr, err error) {
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return nil, err
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

const macLen = 6

// tunnelMAC derives the MAC of a node's tunnel device, locally administered, from
// its address in its pods' network, which no other node has: it is the same after
// a restart.
func tunnelMAC(gateway netip.Addr) net.HardwareAddr {
	tail := gateway.AsSlice()
	if gateway.Is6() {
		sum := sha256.Sum256(tail)
		tail = sum[:4]
	}
	return append(net.HardwareAddr{0x0a, 0x5a}, tail...)
}

// announcement is what this node has to tell; a nil value is for what must not be there.
func (h host) announcement(backend string) map[string]*string {
	out := map[string]*string{}
	for _, name := range annotations {
		out[name] = nil
	}
	set := func(name, value string) {
		if value != "" {
			out[name] = &value
		}
	}
	if backend == None {
		return out
	}
	set(annotationBackend, backend)
	set(annotationAddress, join(h.addrs))
	set(annotationExternal, join(h.external))
	switch backend {
	case VXLAN:
		set(annotationMAC, tunnelMAC(h.gateways[0]).String())
	case WireGuard:
		set(annotationKey, h.key.String())
	}
	return out
}

func join(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}

// announceTimeout bounds one write to the API.
const announceTimeout = 10 * time.Second

// announce writes this node's annotations if they are not as they should be.
func (o *Overlay) announce(ctx context.Context, self *v1.Node, h host) error {
	want := h.announcement(o.cfg.Backend)
	same := true
	for name, value := range want {
		has, is := self.Annotations[name]
		same = same && is == (value != nil) && (!is || has == *value)
	}
	if same {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": want}})
	if err != nil {
		return fmt.Errorf("encode the annotations of node %s: %w", self.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	_, err = o.cfg.Self.CoreV1().Nodes().Patch(ctx, self.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("tell other nodes where this one is: %w", err)
	}
	return nil
}
