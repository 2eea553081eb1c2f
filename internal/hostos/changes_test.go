package hostos

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownNetwork moves the test into a network namespace of its own, with an interface eth0 that is up.
func ownNetwork(t *testing.T) netlink.Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer home.Close()
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err) // the thread stays locked, and ends with the test
			return
		}
		runtime.UnlockOSThread()
	})
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	return l
}

func addr(t *testing.T, text string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestLocalAddresses(t *testing.T) {
	l := ownNetwork(t)
	want := func(addrs ...string) {
		t.Helper()
		var got []string
		ips, err := LocalAddresses("clusterd0")
		for _, ip := range ips {
			got = append(got, ip.String())
		}
		if err != nil || !slices.Equal(got, addrs) {
			t.Errorf("got %v, %v, want %v", got, err, addrs)
		}
	}
	want("::1", "127.0.0.1")
	if err := netlink.AddrAdd(l, addr(t, "192.0.2.5/24")); err != nil {
		t.Fatal(err)
	}
	want("::1", "127.0.0.1", "192.0.2.5")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "clusterd0"
	own := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(own); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(own, addr(t, "10.42.0.1/24")); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(own); err != nil {
		t.Fatal(err)
	}
	want("::1", "127.0.0.1", "192.0.2.5")
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	want("::1", "127.0.0.1")
}

func TestAddressChanges(t *testing.T) {
	l := ownNetwork(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := AddressChanges(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(l, addr(t, "192.0.2.5/24")); err != nil {
		t.Fatal(err)
	}
	change(t, changes, "a new address")
	if err := netlink.AddrDel(l, addr(t, "192.0.2.5/24")); err != nil {
		t.Fatal(err)
	}
	change(t, changes, "an address that went")
	cancel()
	for range changes { // until it is closed
	}
}
