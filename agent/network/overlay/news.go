package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// settle is how long after the first news we look: DHCP takes an
// address away before it gives the next.
const settle = time.Second

// groups are the kernel's news that may concern us.
const groups = unix.RTMGRP_LINK | unix.RTMGRP_NEIGH | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE

// news is the kernel telling of changes to links, addresses, routes and neighbours.
type news struct {
	conn   *netlink.Conn
	device atomic.Int64 // the number of the tunnel, whose neighbours are ours; 0 for none
}

// watchKernel subscribes. Neighbours come and go all the time as pods talk to each
// other: the kernel itself filters all but their removal.
func watchKernel() (*news, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("subscribe to network changes: %w", err)
	}
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // the message's type
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: networkOrder(unix.RTM_NEWNEIGH), SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 16}, // all of it
	})
	if err == nil {
		err = c.SetBPF(filter)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("filter network changes: %w", err)
	}
	return &news{conn: c}, nil
}

// networkOrder is how a filter, which reads numbers in network order, sees one that
// is in the machine's.
func networkOrder(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}

// follow tells, some time after the first of a series of them, of changes that may
// concern us. The returned function ends it.
func (n *news) follow(log *slog.Logger) (changed <-chan struct{}, stop func()) {
	told := make(chan struct{}, 1)
	var waiting atomic.Bool
	timer := time.AfterFunc(time.Hour, func() {
		waiting.Store(false)
		select {
		case told <- struct{}{}:
		default:
		}
	})
	timer.Stop()
	var running sync.WaitGroup
	closed := make(chan struct{})
	running.Go(func() {
		for {
			msgs, err := n.conn.Receive()
			lost := errors.Is(err, unix.ENOBUFS) // more news than the socket holds: look at everything
			if err != nil && !lost {
				select {
				case <-closed:
				default:
					log.Warn("pods on other nodes: network changes are no longer watched", "error", err)
				}
				return
			}
			if (lost || slices.ContainsFunc(msgs, n.concerns)) && waiting.CompareAndSwap(false, true) {
				timer.Reset(settle)
			}
		}
	})
	return told, func() {
		close(closed)
		_ = n.conn.Close()
		running.Wait()
		timer.Stop()
	}
}

// Lengths of the kernel's structures before the attributes, in bytes.
const (
	ifinfomsgLen = 16
	rtmsgLen     = 12
	ndmsgLen     = 12
)

// concerns leaves out what pods that come and go bring about. It may say yes to
// more than matters: that costs a look.
func (n *news) concerns(m netlink.Message) bool {
	switch uint16(m.Header.Type) {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		name := linkName(m.Data)
		return name == Device || name == WireDevice || !strings.HasPrefix(name, podPrefix) && !strings.HasPrefix(name, ownPrefix)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < rtmsgLen {
			return false
		}
		toAll, protocol := m.Data[1] == 0, m.Data[5]
		return toAll || protocol == routeProtocol && uint16(m.Header.Type) == unix.RTM_DELROUTE
	case unix.RTM_DELNEIGH:
		return len(m.Data) >= ndmsgLen && int64(binary.NativeEndian.Uint32(m.Data[4:])) == n.device.Load()
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	}
	return false
}

// podPrefix begins the names of the node's ends of the pods' cables.
const podPrefix = "pod"

func linkName(data []byte) string {
	if len(data) < ifinfomsgLen {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(data[ifinfomsgLen:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.IFLA_IFNAME {
			return ad.String()
		}
	}
	return ""
}
