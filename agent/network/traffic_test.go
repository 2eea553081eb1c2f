package network_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// serve answers every TCP connection and UDP packet to port in a namespace with
// the address that it came from.
func serve(t testing.TB, ns string, port int) {
	t.Helper()
	must(t, inNS(ns, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go serveTCP(l)
		u, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		go serveUDP(u)
		return nil
	}))
}

// serveTCP answers each line with the client's address.
func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, 64)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
				fmt.Fprintln(c, clientOf(c.RemoteAddr()))
			}
		}()
	}
}

func serveUDP(u net.PacketConn) {
	b := make([]byte, 64)
	for {
		_, from, err := u.ReadFrom(b)
		if err != nil {
			return
		}
		u.WriteTo([]byte(clientOf(from)), from)
	}
}

func clientOf(a net.Addr) string {
	ap := netip.MustParseAddrPort(a.String())
	return ap.Addr().Unmap().WithZone("").String()
}

// call connects from a namespace and returns whom the server saw.
func call(ns, proto, host string, port int) (saw string, err error) {
	err = inNS(ns, func() error {
		c, err := net.DialTimeout(proto, net.JoinHostPort(host, fmt.Sprint(port)), time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		saw, err = say(c)
		return err
	})
	return saw, err
}

func say(c net.Conn) (saw string, err error) {
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprintln(c, "who am I"); err != nil {
		return "", err
	}
	b := make([]byte, 64)
	n, err := c.Read(b)
	return strings.TrimSpace(string(b[:n])), err
}

// awaitND tries IPv6 until it works: the kernel joins an address's group for
// neighbour discovery from a work queue, a moment after the address is there.
func awaitND(t testing.TB, ns, host string, port int) {
	t.Helper()
	eventually(t, func() error { _, err := call(ns, "tcp", host, port); return err })
}

// patience is for what must happen, however busy the machine is.
const patience = 30 * time.Second

// eventually tries again until it works.
func eventually(t testing.TB, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// wantCall calls more than once if it must: on a busy machine a packet gets lost, or takes more than a call waits.
func wantCall(t testing.TB, ns, proto, host string, port int, saw string) {
	t.Helper()
	got, err := call(ns, proto, host, port)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		got, err = call(ns, proto, host, port)
	}
	if err != nil {
		t.Errorf("%s to %s port %d: %v", proto, host, port, err)
	} else if saw != "" && got != saw {
		t.Errorf("%s to %s port %d: the server saw %s, want %s", proto, host, port, got, saw)
	}
}
