package overlay

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// userspace is the WireGuard tunnel in this process, on a TUN interface.
type userspace struct {
	index int // of the interface
	tun   *quietTUN
	dev   *wg.Device
	now   wgtypes.Device // as it was last set
}

// newUserspace takes the interface, or makes it, and starts the tunnel without peers.
func newUserspace(key wgtypes.Key, log *slog.Logger) (*userspace, error) {
	fd, err := openTUN()
	if err != nil {
		return nil, err
	}
	native, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("use the TUN interface: %w", err)
	}
	u := &userspace{tun: &quietTUN{Device: native, events: make(chan tun.Event, 1)}}
	u.dev = wg.NewDevice(u.tun, conn.NewDefaultBind(), &wg.Logger{
		Verbosef: wg.DiscardLogf,
		Errorf:   func(format string, args ...any) { log.Debug("WireGuard: " + fmt.Sprintf(format, args...)) },
	})
	port := wirePort
	err = u.set(wgtypes.Config{PrivateKey: &key, ListenPort: &port})
	if err == nil {
		err = u.dev.Up()
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = errPortUsed
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// openTUN opens the interface, which stays when it is closed again.
func openTUN() (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errNoTUN
	}
	ifr, err := unix.NewIfreq(WireDevice)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("open the TUN interface: %w", err)
	}
	return fd, nil
}

func isTUN(link netlink.Link) bool {
	t, is := link.(*netlink.Tuntap)
	return is && t.Mode == netlink.TUNTAP_MODE_TUN
}

// drives says whether the interface is the tunnel's and the tunnel works.
func (u *userspace) drives(link netlink.Link) bool {
	select {
	case <-u.dev.Wait(): // it ends when its interface goes
		return false
	default:
		return link.Attrs().Index == u.index
	}
}

// changed tells the tunnel that its interface is another, in MTU above all.
func (u *userspace) changed() { u.tun.tell(tun.EventMTUUpdate) }

// rebind makes it forget which of the node's addresses it sent from, and tells the
// other nodes the new one.
func (u *userspace) rebind() error {
	if err := u.dev.BindUpdate(); err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	u.dev.SendKeepalivesToPeersWithCurrentKeypair()
	return nil
}

func (u *userspace) close() { u.dev.Close() }

func (u *userspace) state() (*wgtypes.Device, error) { return &u.now, nil }

// set configures it, and greets new peers: those that knew this node's last process
// would otherwise go on with the session of that, and notice only after 15 seconds.
func (u *userspace) set(c wgtypes.Config) error {
	if err := u.dev.IpcSet(uapi(c)); err != nil {
		return err
	}
	if c.PrivateKey != nil {
		u.now.PrivateKey = *c.PrivateKey
	}
	if c.ListenPort != nil {
		u.now.ListenPort = *c.ListenPort
	}
	known := map[wgtypes.Key]wgtypes.Peer{}
	for _, p := range u.now.Peers {
		known[p.PublicKey] = p
	}
	for _, p := range c.Peers {
		_, is := known[p.PublicKey]
		if delete(known, p.PublicKey); p.Remove {
			continue
		}
		known[p.PublicKey] = wgtypes.Peer{PublicKey: p.PublicKey, PersistentKeepaliveInterval: *p.PersistentKeepaliveInterval, AllowedIPs: p.AllowedIPs}
		if peer := u.dev.LookupPeer(wg.NoisePublicKey(p.PublicKey)); peer != nil && !is {
			peer.SendKeepalive()
		}
	}
	u.now.Peers = nil
	for _, p := range known {
		u.now.Peers = append(u.now.Peers, p)
	}
	return nil
}

// uapi is a configuration in WireGuard's own form.
func uapi(c wgtypes.Config) string {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s=%v\n", name, value) }
	if c.PrivateKey != nil {
		line("private_key", hex.EncodeToString(c.PrivateKey[:]))
	}
	if c.ListenPort != nil {
		line("listen_port", *c.ListenPort)
	}
	for _, p := range c.Peers {
		line("public_key", hex.EncodeToString(p.PublicKey[:]))
		if p.Remove {
			line("remove", true)
			continue
		}
		if p.Endpoint != nil {
			line("endpoint", p.Endpoint)
		}
		line("persistent_keepalive_interval", int(p.PersistentKeepaliveInterval.Seconds()))
		line("replace_allowed_ips", p.ReplaceAllowedIPs)
		for _, n := range p.AllowedIPs {
			line("allowed_ip", (*net.IPNet)(&n))
		}
	}
	return b.String()
}

// quietTUN is the interface for the tunnel. The library's own way to notice changes
// of it wakes up each second; we know of them.
type quietTUN struct {
	tun.Device
	events chan tun.Event // has room for one
	mu     sync.Mutex
	closed bool
}

// Events implements the interface.
func (q *quietTUN) Events() <-chan tun.Event { return q.events }

func (q *quietTUN) tell(e tun.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	select {
	case q.events <- e:
	default: // the last one is not read yet
	}
}

// Close implements the interface; the tunnel calls it when it ends.
func (q *quietTUN) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	close(q.events)
	return q.Device.Close()
}
