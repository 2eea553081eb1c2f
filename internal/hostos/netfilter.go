package hostos

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// getInfo is IPT_SO_GET_INFO of the kernel's ip_tables.h: read a table's counts.
const getInfo = 64

func (s system) probeNetfilter(h *Host) error {
	h.HasNFT = s.has("nft", s.nft)
	h.HasIPTables = s.has("iptables", s.iptablesKernel())
	return nil
}

// iptablesKernel is the check for the kernel side of the iptables program: most distributions build it on nf_tables, some
// on the older ip_tables.
func (s system) iptablesKernel() func() error {
	path, err := s.lookPath("iptables")
	if err != nil {
		return s.iptables
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && strings.Contains(filepath.Base(real), "nft") {
		return s.nft
	}
	return s.iptables
}

func (s system) has(tool string, kernel func() error) bool {
	_, err := s.lookPath(tool)
	return err == nil && kernel() == nil
}

// tryNFT makes a table with a nat chain in a network namespace of its own, which goes when nothing is in it any more. A
// kernel may have nf_tables without the family or the chain type that Services need.
func tryNFT() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		host, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("open the network namespace: %w", err)
			return
		}
		defer host.Close()
		err = makeNATChain()
		// A thread that cannot come back ends with this goroutine. That is not enough for all: the process's first thread
		// stays, and /proc/self/net with it.
		if back := netns.Set(host); back == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

func makeNATChain() error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "probe"})
	c.AddChain(&nftables.Chain{Name: "probe", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make a nat chain with nftables: %w", err)
	}
	return nil
}

// tryIPTables asks the kernel's ip_tables for the nat table, which loads the module when there is one.
func tryIPTables() error {
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
