package overlay

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// keyOf is a public key that differs for each n.
func keyOf(n byte) wgtypes.Key { return wgtypes.Key{31: n, 0: 1} }

// wired is a node with a key, and one on another network that has one.
func wired(change func(*peer)) (host, peer) {
	h := here()
	h.key = keyOf(1)
	return h, there(func(p *peer) {
		p.backend, p.mac, p.key, p.addrs = WireGuard, "", keyOf(2), addrs("198.51.100.2")
		change(p)
	})
}

func TestWirePlan(t *testing.T) {
	h, far := wired(func(*peer) {})
	_, near := wired(func(p *peer) { p.name, p.key, p.addrs = "a", keyOf(3), addrs("192.0.2.3") })
	near.cidrs = []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")}
	got, odd := h.plan(WireGuard, []peer{far, near})
	if len(odd) > 0 || got.wire == nil || len(got.wire.peers) != 2 || got.device != nil {
		t.Fatalf("got %+v, %q", got, odd)
	}
	a, b := got.wire.peers[0], got.wire.peers[1]
	if !a.near || a.keepalive() != 0 || b.near || b.keepalive() != keepalive {
		t.Errorf("only a tunnel that leaves the network has to be kept open: %+v, %+v", a, b)
	}
	if b.endpoint() != netip.MustParseAddrPort("198.51.100.2:51820") || !slices.Equal(b.allowed, far.cidrs) {
		t.Errorf("got the peer %+v", b)
	}
	if got.wire.mtu != 1420 || len(got.routes) != 3 || got.routes[0].via.IsValid() || got.routes[0].src != h.gateways[0] {
		t.Errorf("MTU %d, routes %v", got.wire.mtu, got.routes)
	}
	again, _ := h.plan(WireGuard, []peer{near, far})
	if !got.equal(again) {
		t.Error("the plan is another in another order")
	}
	for what, change := range map[string]func(*peer){
		"key": func(p *peer) { p.key = keyOf(9) }, "address": func(p *peer) { p.addrs = addrs("198.51.100.9") }, "pods": func(p *peer) { p.cidrs = p.cidrs[:1] },
	} {
		_, other := wired(change)
		if changed, _ := h.plan(WireGuard, []peer{other, near}); got.equal(changed) {
			t.Errorf("a peer's %s makes no difference", what)
		}
	}
}

func TestOddWirePeers(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*peer)
		want   string
	}{
		"no key":              {func(p *peer) { p.key = wgtypes.Key{} }, "node b: it has told no WireGuard key"},
		"this node's key":     {func(p *peer) { p.key = keyOf(1) }, "node b: it has this node's WireGuard key"},
		"another's key":       {func(p *peer) { p.key = keyOf(3) }, "node b: its WireGuard key is another node's"},
		"this node's address": {func(p *peer) { p.addrs = addrs("192.0.2.1") }, "node b: it says that its address is 192.0.2.1"},
		"no address":          {func(p *peer) { p.addrs = addrs("2001:db8::2") }, "node b: it has no IPv4 address"},
		"other backend":       {func(p *peer) { p.backend = VXLAN }, "node b: its backend is vxlan"},
	} {
		h, bad := wired(row.change)
		_, good := wired(func(p *peer) { p.name, p.key = "a", keyOf(3) })
		got, odd := h.plan(WireGuard, []peer{bad, good})
		if len(odd) != 1 || !strings.HasPrefix(odd[0], row.want) {
			t.Errorf("%s: said %q, want %q", name, odd, row.want)
		}
		if got.wire == nil || len(got.wire.peers) != 1 || got.wire.peers[0].key != keyOf(3) {
			t.Errorf("%s: peers %+v, want the good one", name, got.wire)
		}
	}
}

// TestPeerChanges: nothing for what is right, and a peer's endpoint is left alone unless it has said another.
func TestPeerChanges(t *testing.T) {
	want := wirePeer{key: keyOf(2), at: netip.MustParseAddr("198.51.100.2"), allowed: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24")}}
	has := func(heard time.Duration, change func(*wgtypes.Peer)) []wgtypes.Peer {
		c := want.config(false)
		p := wgtypes.Peer{PublicKey: want.key, AllowedIPs: c.AllowedIPs, PersistentKeepaliveInterval: keepalive, LastHandshakeTime: time.Now().Add(-heard)}
		change(&p)
		return []wgtypes.Peer{p}
	}
	same := func(*wgtypes.Peer) {}
	said := func(at string) map[wgtypes.Key]netip.AddrPort {
		return map[wgtypes.Key]netip.AddrPort{want.key: netip.MustParseAddrPort(at)}
	}
	for name, row := range map[string]struct {
		want     []wirePeer
		have     []wgtypes.Peer
		told     map[wgtypes.Key]netip.AddrPort
		changes  string
		endpoint bool
	}{
		"new":                         {[]wirePeer{want}, nil, nil, "set", true},
		"right":                       {[]wirePeer{want}, has(0, same), said("198.51.100.2:51820"), "", false},
		"right, and long not heard":   {[]wirePeer{want}, has(time.Hour, same), said("198.51.100.2:51820"), "", false},
		"moved":                       {[]wirePeer{want}, has(0, same), said("198.51.100.9:51820"), "set", true},
		"of an earlier process":       {[]wirePeer{want}, has(time.Minute, same), nil, "", false},
		"of an earlier process, dead": {[]wirePeer{want}, has(time.Hour, same), nil, "set", true},
		"other pods":                  {[]wirePeer{want}, has(0, func(p *wgtypes.Peer) { p.AllowedIPs = nil }), said("198.51.100.2:51820"), "set", false},
		"other keepalive":             {[]wirePeer{want}, has(0, func(p *wgtypes.Peer) { p.PersistentKeepaliveInterval = 0 }), said("198.51.100.2:51820"), "set", false},
		"gone":                        {nil, has(0, same), nil, "remove", false},
		"another key":                 {[]wirePeer{want}, has(0, func(p *wgtypes.Peer) { p.PublicKey = keyOf(7) }), nil, "remove set", true},
	} {
		var did []string
		endpoint := false
		for _, c := range peerChanges(row.want, row.have, row.told) {
			did = append(did, map[bool]string{true: "remove", false: "set"}[c.Remove])
			endpoint = endpoint || c.Endpoint != nil
		}
		if got := strings.Join(did, " "); got != row.changes || endpoint != row.endpoint {
			t.Errorf("%s: %q, endpoint %t; want %q, %t", name, got, endpoint, row.changes, row.endpoint)
		}
	}
}

// TestWireKey: it is made once, is root's alone, is not logged, and one that a power cut emptied is replaced.
func TestWireKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	var log strings.Builder
	load := func() wgtypes.Key {
		t.Helper()
		w := &wireguard{keyFile: path, log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := w.loadKey(); err != nil {
			t.Fatal(err)
		}
		return w.key
	}
	first := load()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want the mode 0600", st, err)
	}
	if again := load(); again != first || log.Len() > 0 {
		t.Errorf("the second start has another key, or something to say: %s", &log)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if next := load(); next == first || next == (wgtypes.Key{}) || !strings.Contains(log.String(), path) || strings.Contains(log.String(), next.String()) {
		t.Errorf("after the file was emptied: %s", &log)
	}
	w := &wireguard{keyFile: filepath.Join(path, "below"), log: slog.New(slog.DiscardHandler)}
	if err := w.loadKey(); err == nil || !strings.Contains(err.Error(), "WireGuard key") {
		t.Errorf("an unreadable place: %v", err)
	}
}

func TestUAPI(t *testing.T) {
	p := wirePeer{key: keyOf(2), at: netip.MustParseAddr("2001:db8::2"), allowed: []netip.Prefix{netip.MustParsePrefix("10.42.2.0/24"), netip.MustParsePrefix("fd42:0:0:2::/64")}}
	port := wirePort
	got := uapi(wgtypes.Config{ListenPort: &port, Peers: []wgtypes.PeerConfig{{PublicKey: keyOf(3), Remove: true}, p.config(true)}})
	two, three := "01"+strings.Repeat("00", 30)+"02", "01"+strings.Repeat("00", 30)+"03"
	want := "listen_port=51820\npublic_key=" + three + "\nremove=true\npublic_key=" + two +
		"\nendpoint=[2001:db8::2]:51820\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\n" +
		"allowed_ip=10.42.2.0/24\nallowed_ip=fd42:0:0:2::/64\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestKeyAnnotation: what a node tells is what the others read.
func TestKeyAnnotation(t *testing.T) {
	h, _ := wired(func(*peer) {})
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{}}}
	n.Spec.PodCIDRs = []string{"10.42.2.0/24"}
	for name, value := range h.announcement(WireGuard) {
		if value != nil {
			n.Annotations[name] = *value
		}
	}
	if p, ok, err := peerOf(keep(n)); err != nil || !ok || p.key != h.key || p.mac != "" {
		t.Errorf("got %+v %t %v", p, ok, err)
	}
	n.Annotations[annotationKey] = "secret"
	if _, ok, err := peerOf(keep(n)); ok || err == nil || !strings.Contains(err.Error(), annotationKey) {
		t.Errorf("a broken key: %t %v", ok, err)
	}
	if h.announcement(VXLAN)[annotationKey] != nil {
		t.Error("the key is told with another backend")
	}
}
