// Package capture lets tests see the packets that pass a network interface, as they are on the wire.
package capture

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Capture is a running look at one interface. The kernel keeps what it sees until Stop: 64 MiB of it.
type Capture struct{ socket int }

// Frame is one Ethernet frame.
type Frame []byte

// Start begins to look at an interface of the calling thread's network namespace, in both directions.
func Start(iface string) (*Capture, error) {
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make room for packets: %w", err)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("look at %s: %w", iface, err)
	}
	return &Capture{fd}, nil
}

const (
	room = 64 << 20
	// largest is what the kernel may hand over as one frame before it is cut into packets.
	largest = 1<<16 + 64
)

// Stop ends it and returns what it has seen.
func (c *Capture) Stop() (frames []Frame) {
	b := make([]byte, largest)
	for {
		n, err := unix.Read(c.socket, b)
		if err != nil { // there is no more
			unix.Close(c.socket)
			return frames
		}
		frames = append(frames, append(Frame(nil), b[:n]...))
	}
}

// Lengths of headers in bytes.
const (
	etherLen = 14
	ip4Len   = 20
	ip6Len   = 40
)

// Kind is the protocol of a frame, and the ports if it has some: "udp 51820 51820", "tcp 4711 80", "arp", "icmp6".
func (f Frame) Kind() string {
	if len(f) < etherLen {
		return "short"
	}
	switch kind, packet := binary.BigEndian.Uint16(f[12:]), f[etherLen:]; {
	case kind == unix.ETH_P_ARP:
		return "arp"
	case kind == unix.ETH_P_IP && len(packet) >= ip4Len:
		return transport(packet[9], packet[min(int(packet[0]&0xf)*4, len(packet)):])
	case kind == unix.ETH_P_IPV6 && len(packet) >= ip6Len:
		return transport(packet[6], packet[ip6Len:])
	default:
		return fmt.Sprintf("ethertype %#x", kind)
	}
}

func transport(protocol byte, segment []byte) string {
	switch {
	case protocol == unix.IPPROTO_ICMP:
		return "icmp"
	case protocol == unix.IPPROTO_ICMPV6:
		return "icmp6"
	case protocol == unix.IPPROTO_HOPOPTS: // the kernel's reports about multicast groups
		return "hop-by-hop"
	case (protocol == unix.IPPROTO_UDP || protocol == unix.IPPROTO_TCP) && len(segment) >= 4:
		name := map[byte]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp"}[protocol]
		return fmt.Sprintf("%s %d %d", name, binary.BigEndian.Uint16(segment), binary.BigEndian.Uint16(segment[2:]))
	default:
		return fmt.Sprintf("protocol %d", protocol)
	}
}
