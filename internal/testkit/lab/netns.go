package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, named by its file.
type Namespace string

// Do calls f on a thread that is in the namespace. Sockets that f makes stay there; f must not make them on other
// goroutines.
func (ns Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	there, err := os.Open(string(ns))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", ns, err)
	}
	result := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, so that the runtime ends it with this goroutine.
		return fmt.Errorf("leave %s: %w", ns, err)
	}
	runtime.UnlockOSThread()
	return result
}

// Listen listens in the namespace.
func (ns Namespace) Listen(network, address string) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket listens for datagrams in the namespace.
func (ns Namespace) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = ns.Do(func() error {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// DialContext connects from the namespace to an address whose host is an IP address: names would be looked up outside.
func (ns Namespace) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}
