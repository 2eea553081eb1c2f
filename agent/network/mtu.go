package network

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// SetMTU changes the largest packet of the bridge and of all pods, those that run
// too: their connections go on. It may be called when the network is ready.
func (n *Network) SetMTU(mtu int) error {
	n.mtu.Store(int64(mtu)) // before the pods are listed: one that comes now takes it
	var errs []error
	for _, a := range n.ledger.All() {
		errs = append(errs, n.setPodMTU(a.Key, mtu))
	}
	bridge, err := netlink.LinkByName(n.cfg.Bridge)
	if err == nil && bridge.Attrs().MTU != mtu {
		err = netlink.LinkSetMTU(bridge, mtu)
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("set MTU %d on bridge %s: %w", mtu, n.cfg.Bridge, err))
	}
	return errors.Join(errs...)
}

// setPodMTU changes both ends of a pod's cable. A pod that is gone or half made,
// which its lock rules out but for a dead one, needs nothing.
func (n *Network) setPodMTU(k ipam.Key, mtu int) error {
	defer n.locks.lock(k)()
	a, is := n.ledger.Get(k)
	if !is {
		return nil
	}
	host, err := netlink.LinkByName(a.HostVeth)
	if isNoLink(err) {
		return nil
	}
	if err == nil && host.Attrs().MTU != mtu {
		err = errors.Join(setMTUInside(a, mtu), netlink.LinkSetMTU(host, mtu))
	}
	if err != nil {
		return fmt.Errorf("set MTU %d for sandbox %s: %w", mtu, a.ContainerID, err)
	}
	return nil
}

func setMTUInside(a ipam.Allocation, mtu int) error {
	ns, err := netns.GetFromPath(a.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", a.NetNS, err)
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", a.NetNS, err)
	}
	defer pod.Close()
	link, err := pod.LinkByName(a.IfName)
	if err != nil {
		return err
	}
	return pod.LinkSetMTU(link, mtu)
}
