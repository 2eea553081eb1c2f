package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/testkit/capture"
)

// TestWireGuardChangedAddress: the other machines follow, and connections of pods live through it.
func TestWireGuardChangedAddress(t *testing.T) {
	_, ms := three(t, overlay.WireGuard)
	a, b := ms[0].podOn(t, "a"), ms[1].podOn(t, "b")
	var c net.Conn
	must(t, inNS(a.ns, func() (err error) { c, err = net.DialTimeout("tcp", b.v4.String()+":80", patience); return err }))
	defer c.Close()
	if _, err := say(c); err != nil {
		t.Fatal(err)
	}
	ms[1].in(t, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.AddrDel(link, &netlink.Addr{IPNet: hostNet("192.0.2.2/24")})
		}
		if err == nil {
			address(t, "eth0", "192.0.2.22/24")
		}
		return err
	})
	eventually(t, func() error {
		saw, err := say(c)
		if err == nil && saw != a.v4.String() {
			err = fmt.Errorf("saw %s", saw)
		}
		return err
	})
}

func hostNet(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// TestWireGuardBehindRouter is of a machine that others cannot call, since a router gives its packets another address.
func TestWireGuardBehindRouter(t *testing.T) {
	l := newLAN(t)
	elsewhere(t)
	hide(t, "198.51.100.0/24")
	near := l.machine(t, 1, overlay.WireGuard, "192.0.2.1/24").join(t).run(t) // no way back to the far one's own address
	far := l.machine(t, 2, overlay.WireGuard, "198.51.100.2/24").defaultRoute(t, "198.51.100.254").join(t).run(t)
	near.wantEntries(t, 2, 0, 0)
	far.wantEntries(t, 2, 0, 0)
	a, b := near.podOn(t, "a"), far.podOn(t, "b")
	wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
	wantCall(t, b.ns, "tcp", a.v6.String(), 80, b.v6.String())
	l.machine(t, 3, overlay.WireGuard, "192.0.2.3/24").join(t).run(t) // a look at everything does not make it forget
	near.wantEntries(t, 4, 0, 0)
	wantCall(t, a.ns, "tcp", b.v4.String(), 80, a.v4.String())
}

// hide makes the test's own namespace give packets from a network its own address, for the time of the test.
func hide(t *testing.T, from string) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	table := c.AddTable(&nftables.Table{Name: "router", Family: nftables.TableFamilyIPv4})
	post := c.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	hidden := ipnet(from)
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: hidden.Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: hidden.IP.To4()},
		&expr.Masq{},
	}})
	must(t, c.Flush()) // the machines' cleanup removes all rules
}

// TestWireGuardPortUsed: who has the port is asked for it in one line, and the tunnel comes when it is free.
func TestWireGuardPortUsed(t *testing.T) {
	l := newLAN(t)
	m := l.machine(t, 1, overlay.WireGuard)
	var holder net.PacketConn
	m.in(t, func() (err error) { holder, err = net.ListenPacket("udp", ":51820"); return err })
	defer holder.Close()
	m.join(t).run(t)
	l.machine(t, 2, overlay.WireGuard).join(t).run(t)
	eventually(t, func() error {
		if !strings.Contains(m.log.String(), "UDP port 51820 is used by somebody else") {
			return errors.New(m.log.String())
		}
		return nil
	})
	holder.Close()
	m.wantEntries(t, 2, 0, 0)
}

// TestWireGuardIdle: between machines of one network a tunnel that nobody uses is silent, for longer than the time in
// which one over a router says something.
func TestWireGuardIdle(t *testing.T) {
	three(t, overlay.WireGuard)
	var n int
	for range 3 { // the first words of the tunnel take some seconds
		c, err := capture.Start("lan-m3")
		must(t, err)
		time.Sleep(30 * time.Second)
		n = 0
		for _, f := range c.Stop() {
			if f.Kind() == wirePort {
				n++
			}
		}
		if n == 0 {
			return
		}
	}
	t.Errorf("%d packets in 30 seconds", n)
}
