package hostos

import (
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// getInfo is IPT_SO_GET_INFO of the kernel's ip_tables.h: read a table's counts.
const getInfo = 64

func (s system) probeNetfilter(h *Host) error {
	h.HasNFT = s.has("nft", s.nft)
	h.HasIPTables = s.has("iptables", s.iptables)
	return nil
}

func (s system) has(tool string, kernel func() error) bool {
	_, err := s.lookPath(tool)
	return err == nil && kernel() == nil
}

// tryNFT asks the kernel for the generation of its nftables rules, which loads the module when there is one.
func tryNFT() error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("ask for nftables generation: %w", err)
	}
	return nil
}

// tryIPTables accepts either kernel side of the tool: nf_tables, on which current distributions build it, or the older
// ip_tables, of which the nat table is asked for.
func tryIPTables() error {
	if tryNFT() == nil {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)
	var info struct {
		name [32]byte
		rest [52]byte
	}
	copy(info.name[:], "nat")
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return fmt.Errorf("read iptables nat table: %w", errno)
	}
	return nil
}
