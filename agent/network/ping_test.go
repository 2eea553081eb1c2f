package network_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"
)

// ping sends ICMP echoes from a namespace until one is answered.
func ping(ns string, to netip.Addr) error {
	err := pingOnce(ns, to)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		err = pingOnce(ns, to)
	}
	return err
}

func pingOnce(ns string, to netip.Addr) error {
	return inNS(ns, func() error {
		c, err := net.Dial("ip4:icmp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		echo := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
		binary.BigEndian.PutUint16(echo[2:], checksum(echo))
		if _, err := c.Write(echo); err != nil {
			return err
		}
		b := make([]byte, 128)
		for {
			n, _, err := c.(*net.IPConn).ReadFrom(b) // without the IP header
			if err != nil {
				return err
			}
			if n >= 8 && b[0] == 0 && b[4] == 0x12 && b[5] == 0x34 {
				return nil
			}
		}
	})
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return ^uint16(sum>>16 + sum)
}
