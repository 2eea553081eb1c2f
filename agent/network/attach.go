package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// hostVethPrefix begins the name of the node's end of every pod's cable.
const hostVethPrefix = "pod"

// hostVeth derives the name of the node's end from the key, so that it can be
// found and removed even when the record is lost.
func hostVeth(k ipam.Key) string {
	sum := sha256.Sum256([]byte(k.ContainerID + "@" + k.IfName))
	return hostVethPrefix + hex.EncodeToString(sum[:])[:maxIfName-len(hostVethPrefix)]
}

// add connects a pod. A repeated call gets the same answer as the first one.
func (n *Network) add(r request) (any, error) {
	defer n.locks.lock(r.key)()
	if a, is := n.ledger.Get(r.key); is {
		if a.NetNS == r.netns && slices.Equal(a.Ports, r.ports) && n.verify(a) == nil {
			return newResult(n.cfg.Bridge, a), nil
		}
		if err := n.detach(r.key); err != nil {
			return nil, err
		}
	}
	if len(r.ports) > 0 && n.rules.unavailable != nil {
		return nil, fmt.Errorf("map a hostPort: %w", n.rules.unavailable)
	}
	a, err := n.ledger.Allocate(ipam.Allocation{
		Key: r.key, NetNS: r.netns, HostVeth: hostVeth(r.key), Ports: r.ports, Created: time.Now(),
	})
	if err != nil {
		return nil, err
	}
	if err := n.connect(a); err != nil {
		return nil, errors.Join(err, n.detach(r.key))
	}
	return newResult(n.cfg.Bridge, a), nil
}

func (n *Network) connect(a ipam.Allocation) error {
	if err := plug(a, n.cfg.Bridge, int(n.mtu.Load())); err != nil {
		return err
	}
	if len(a.Ports) == 0 {
		return nil
	}
	if err := n.rules.sync(); err != nil {
		return err
	}
	n.forgetFlows(a.Ports)
	return nil
}

// del takes away whatever there is of k; nothing is a success.
func (n *Network) del(k ipam.Key) error {
	defer n.locks.lock(k)()
	return n.detach(k)
}

// detach needs k's lock. The record goes last: as long as anything of the pod
// may be in the kernel, its addresses are not given to another one.
func (n *Network) detach(k ipam.Key) error {
	a, is := n.ledger.Get(k)
	if err := unplug(hostVeth(k)); err != nil {
		return err
	}
	if err := n.ledger.Release(k); err != nil {
		return err
	}
	if !is || len(a.Ports) == 0 {
		return nil
	}
	if err := n.rules.sync(); err != nil {
		return err
	}
	n.forgetFlows(a.Ports)
	return nil
}

func (n *Network) check(r request) error {
	defer n.locks.lock(r.key)()
	a, is := n.ledger.Get(r.key)
	if !is {
		return fmt.Errorf("check sandbox %s: it has no address for %s", r.key.ContainerID, r.key.IfName)
	}
	return n.verify(a)
}

// gc removes every attachment that is not in valid.
func (n *Network) gc(valid []ipam.Key) error {
	var errs []error
	for _, a := range n.ledger.All() {
		if !slices.Contains(valid, a.Key) {
			errs = append(errs, n.del(a.Key))
		}
	}
	return errors.Join(errs...)
}
