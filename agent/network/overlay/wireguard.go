package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// wirePort is the UDP port of the WireGuard tunnel, flannel's for IPv4.
const wirePort = 51820

// wireguard is the WireGuard tunnel of this node: the kernel's, or where that has
// none, one in this process. Only the one goroutine of the overlay uses it.
//
// Why the interface of the tunnel in the process outlives it: as long as it is
// there, so are the routes into it, and packets for other nodes' pods wait or are
// lost, but do not leave the node in the clear by its default route.
type wireguard struct {
	keyFile string
	log     *slog.Logger
	key     wgtypes.Key // zero until loadKey
	user    *userspace  // nil: the kernel's, or none at all

	told  map[wgtypes.Key]netip.AddrPort // where this process has said that peers are
	addrs []netip.Addr                   // the node's addresses when the tunnel last looked
}

// loadKey reads the node's private key, or makes one. One that cannot be read is
// replaced: the others learn of the new one by this node's annotation.
func (w *wireguard) loadKey() error {
	if w.key != (wgtypes.Key{}) {
		return nil
	}
	text, err := os.ReadFile(w.keyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the WireGuard key: %w", err)
	}
	if err == nil {
		key, parseErr := wgtypes.ParseKey(strings.TrimSpace(string(text)))
		if parseErr == nil {
			w.key = key
			return nil
		}
		w.log.Warn("the WireGuard key of this node is not one: making another", "file", w.keyFile)
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return fmt.Errorf("make a WireGuard key: %w", err)
	}
	if err := atomicfile.WriteDurable(w.keyFile, 0o600, []byte(key.String()+"\n")); err != nil {
		return fmt.Errorf("keep the WireGuard key: %w", err)
	}
	w.key = key
	return nil
}

// ensure makes the tunnel, or brings the one that is there to the wanted state.
func (w *wireguard) ensure(want wire) (index, changes int, err error) {
	link, changes, err := w.link()
	if err != nil {
		return 0, changes, fmt.Errorf("make %s: %w", WireDevice, err)
	}
	index = link.Attrs().Index
	n, err := w.configure(want)
	if changes += n; err != nil {
		return index, changes, fmt.Errorf("configure %s: %w", WireDevice, err)
	}
	n, err = setUp(link, want.mtu, want.own)
	if n > 0 && w.user != nil {
		w.user.changed()
	}
	if errors.Is(err, unix.EADDRINUSE) { // the kernel takes the port with that
		err = errPortUsed
	}
	return index, changes + n, err
}

var (
	errPortUsed = fmt.Errorf("UDP port %d is used by somebody else: free it, or choose --flannel-backend vxlan", wirePort)
	errNoTUN    = errors.New("this kernel has neither WireGuard nor TUN: load the module wireguard or tun, or choose --flannel-backend vxlan")
)

// link returns the tunnel's interface. One that a former process has left is taken over.
func (w *wireguard) link() (link netlink.Link, changes int, err error) {
	link, err = netlink.LinkByName(WireDevice)
	if err != nil && !isNoLink(err) {
		return nil, 0, err
	}
	there := err == nil
	if w.user != nil && !(there && w.user.drives(link)) { // somebody took it away
		w.close()
	}
	switch {
	case there && (w.user != nil || link.Type() == (&netlink.Wireguard{}).Type()):
		return link, 0, nil
	case there && isTUN(link):
		link, err = w.inProcess()
		return link, 1, err
	case there:
		if err := netlink.LinkDel(link); err != nil {
			return nil, 1, fmt.Errorf("remove the interface of that name, which is another: %w", err)
		}
	}
	link, err = w.make()
	return link, changes + 1, err
}

func (w *wireguard) make() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = WireDevice
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		link, err := w.inProcess()
		if err != nil {
			return nil, err
		}
		w.log.Info("this kernel has no WireGuard: this process does it, with more work for the CPU")
		return link, refuseAutoAddresses(link)
	}
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(WireDevice)
	if err != nil {
		return nil, err
	}
	return link, refuseAutoAddresses(link)
}

// inProcess starts the tunnel in this process, on the interface that is there or a new one.
func (w *wireguard) inProcess() (netlink.Link, error) {
	u, err := newUserspace(w.key, w.log)
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(WireDevice)
	if err != nil {
		u.close()
		return nil, err
	}
	u.index, w.user, w.told = link.Attrs().Index, u, nil
	return link, nil
}

// configure sets the key and the port of the tunnel, and its peers.
func (w *wireguard) configure(want wire) (changes int, err error) {
	tunnel := configurator(w.user)
	if w.user == nil {
		client, err := wgctrl.New()
		if err != nil {
			return 0, fmt.Errorf("reach the kernel's WireGuard: %w", err)
		}
		defer client.Close()
		tunnel = kernel{client}
	}
	have, err := tunnel.state()
	if err != nil {
		return 0, fmt.Errorf("read its state: %w", err)
	}
	cfg := wgtypes.Config{Peers: peerChanges(want.peers, have.Peers, w.told)}
	if have.PrivateKey != w.key {
		cfg.PrivateKey = &w.key
	}
	if port := wirePort; have.ListenPort != port {
		cfg.ListenPort = &port
	}
	if cfg.PrivateKey != nil || cfg.ListenPort != nil || len(cfg.Peers) > 0 {
		changes = max(1, len(cfg.Peers))
		err = tunnel.set(cfg)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = errPortUsed
	}
	if err != nil {
		return changes, err
	}
	w.told = map[wgtypes.Key]netip.AddrPort{}
	for _, p := range want.peers {
		w.told[p.key] = p.endpoint()
	}
	if w.user != nil && w.addrs != nil && !slices.Equal(w.addrs, want.addrs) {
		err = w.user.rebind()
	}
	w.addrs = want.addrs
	return changes, err
}

// remove takes the tunnel away.
func (w *wireguard) remove() (changes int, err error) {
	w.close()
	w.told = nil
	return removeDevice(WireDevice)
}

// close ends what is in this process, and leaves the interface.
func (w *wireguard) close() {
	if w.user != nil {
		w.user.close()
		w.user = nil
	}
}

// configurator is a tunnel's key, port and peers.
type configurator interface {
	state() (*wgtypes.Device, error)
	set(wgtypes.Config) error
}

// kernel is the kernel's tunnel.
type kernel struct{ client *wgctrl.Client }

func (k kernel) state() (*wgtypes.Device, error) { return k.client.Device(WireDevice) }
func (k kernel) set(c wgtypes.Config) error      { return k.client.ConfigureDevice(WireDevice, c) }
