package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network/ipam"
	"github.com/clusterd/clusterd/internal/hostos"
)

// firstIfName is what the runtime calls a pod's interface.
const firstIfName = "eth0"

// reconcile brings records, kernel and runtime into agreement: records of dead
// sandboxes go, live sandboxes without a readable record get one, and cables and
// namespaces that belong to nobody are removed. live is what the runtime knows,
// by sandbox id; oldNetNS are the namespace files from before this process.
func (n *Network) reconcile(live map[string]string, oldNetNS []string, damaged []ipam.Key) error {
	if err := n.dropDead(live, damaged); err != nil {
		return err
	}
	n.adoptUnknown(live, damaged)
	if err := n.dropCables(); err != nil {
		return err
	}
	if err := n.dropNetNS(live, oldNetNS); err != nil {
		return err
	}
	n.warnOutside()
	return nil
}

// dropDead releases what no live sandbox has. A sandbox whose namespace is gone
// has no network any more, though the runtime still lists it.
func (n *Network) dropDead(live map[string]string, damaged []ipam.Key) error {
	var errs []error
	dropped := 0
	for _, a := range n.ledger.All() {
		if _, is := live[a.ContainerID]; is && isNetNS(a.NetNS) {
			continue
		}
		errs = append(errs, unplug(a.HostVeth), n.ledger.Release(a.Key))
		dropped++
	}
	for _, k := range damaged {
		if !isNetNS(live[k.ContainerID]) {
			errs = append(errs, unplug(hostVeth(k)), n.ledger.Release(k))
			dropped++
		}
	}
	if dropped > 0 {
		n.log.Info("took back the addresses of dead sandboxes", "count", dropped)
	}
	return errors.Join(errs...)
}

// adoptUnknown makes records for live sandboxes that have none, from what is on
// their interface. One that has no interface is left to the runtime, which tries
// again or deletes it.
func (n *Network) adoptUnknown(live map[string]string, damaged []ipam.Key) {
	known := map[string]bool{}
	for _, a := range n.ledger.All() {
		known[a.ContainerID] = true
	}
	for id, path := range live {
		if known[id] || !isNetNS(path) {
			continue
		}
		k := ipam.Key{ContainerID: id, IfName: firstIfName}
		if i := slices.IndexFunc(damaged, func(d ipam.Key) bool { return d.ContainerID == id }); i >= 0 {
			k = damaged[i]
		}
		if err := n.adopt(k, path); err != nil {
			n.log.Warn("a running sandbox has no usable address record", "sandbox", id, "error", err)
			continue
		}
		n.log.Warn("made the lost address record of a running sandbox again; its hostPorts, if any, come back when it is replaced", "sandbox", id)
	}
}

func (n *Network) adopt(k ipam.Key, path string) error {
	addrs, err := podAddresses(path, k.IfName)
	if err != nil {
		return err
	}
	if len(addrs) == 0 {
		return fmt.Errorf("%s in network namespace %s has no address", k.IfName, path)
	}
	return n.ledger.Adopt(ipam.Allocation{
		Key: k, NetNS: path, HostVeth: hostVeth(k), Addresses: addrs, Created: time.Now(),
	})
}

// dropCables removes the ports of our bridge that are in no record.
func (n *Network) dropCables() error {
	bridge, err := netlink.LinkByName(n.cfg.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.cfg.Bridge, err)
	}
	links, err := hostos.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	recorded := map[string]bool{}
	for _, a := range n.ledger.All() {
		recorded[a.HostVeth] = true
	}
	var errs []error
	for _, l := range links {
		if at := l.Attrs(); at.MasterIndex == bridge.Attrs().Index && l.Type() == "veth" && !recorded[at.Name] {
			errs = append(errs, unplug(at.Name))
		}
	}
	return errors.Join(errs...)
}

// dropNetNS removes old namespace files that neither a live sandbox nor a pod
// that waits for its network uses.
func (n *Network) dropNetNS(live map[string]string, old []string) error {
	used := map[string]bool{}
	for _, path := range live {
		used[path] = true
	}
	var errs []error
	for _, path := range old {
		if !used[path] && !n.pending.has(path) {
			errs = append(errs, removeNetNS(path))
		}
	}
	return errors.Join(errs...)
}

// warnOutside says it when the node's pod CIDRs changed under running pods.
func (n *Network) warnOutside() {
	count := 0
	prefixes := n.ledger.Prefixes()
	for _, a := range n.ledger.All() {
		inside := func(p netip.Prefix) bool {
			return slices.ContainsFunc(prefixes, func(own netip.Prefix) bool { return own.Contains(p.Addr()) })
		}
		if !slices.ContainsFunc(a.Addresses, inside) {
			count++
		}
	}
	if count > 0 {
		n.log.Warn("the node's pod CIDRs changed: running pods keep addresses outside of them until they are replaced",
			"pods", count, "podCIDRs", prefixes)
	}
}
