package capture_test

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/capture"
)

// TestCapture sends packets to itself over the loopback interface. It needs root.
func TestCapture(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, err := capture.Start("lo")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("in the clear")); err != nil {
		t.Fatal(err)
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, _, err := server.ReadFrom(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	_, from, _ := net.SplitHostPort(client.LocalAddr().String())
	_, to, _ := net.SplitHostPort(server.LocalAddr().String())
	var kinds []string
	for _, f := range c.Stop() {
		if bytes.Contains(f, []byte("in the clear")) {
			kinds = append(kinds, f.Kind())
		}
	}
	if !slices.Contains(kinds, "udp "+from+" "+to) {
		t.Errorf("saw the packet as %q, want udp %s %s", strings.Join(kinds, ", "), from, to)
	}
}

func TestKind(t *testing.T) {
	frame := func(ether uint16, rest ...byte) capture.Frame {
		return append(append(make(capture.Frame, 12), byte(ether>>8), byte(ether)), rest...)
	}
	ip4 := func(protocol byte, rest ...byte) []byte {
		h := make([]byte, 20)
		h[0], h[9] = 0x45, protocol
		return append(h, rest...)
	}
	ip6 := func(next byte, rest ...byte) []byte {
		h := make([]byte, 40)
		h[0], h[6] = 0x60, next
		return append(h, rest...)
	}
	for want, f := range map[string]capture.Frame{
		"short":            make(capture.Frame, 3),
		"arp":              frame(0x0806),
		"icmp":             frame(0x0800, ip4(1)...),
		"tcp 80 443":       frame(0x0800, ip4(6, 0, 80, 1, 0xbb)...),
		"udp 51820 51821":  frame(0x86dd, ip6(17, 0xca, 0x6c, 0xca, 0x6d)...),
		"icmp6":            frame(0x86dd, ip6(58)...),
		"protocol 132":     frame(0x0800, ip4(132)...),
		"ethertype 0x88cc": frame(0x88cc, 1),
		"ethertype 0x800":  frame(0x0800, 1, 2),
		"hop-by-hop":       frame(0x86dd, ip6(0)...),
		"protocol 17":      frame(0x0800, ip4(17, 1)...),
	} {
		if got := f.Kind(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
