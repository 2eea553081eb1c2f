package network

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/internal/hostos"
)

// Tables are the names of the tables that the pods' network makes, as nft writes them.
var Tables = []string{"ip " + tableName, "ip6 " + tableName}

// podLink is what the node's end of a pod's cable is called.
var podLink = regexp.MustCompile(`^pod[0-9a-f]{12}$`)

// RemoveBridge removes a bridge with the cables that pods still have to it. It is for a machine on which no Network runs.
func RemoveBridge(name string) error {
	bridge, err := netlink.LinkByName(name)
	if isNoLink(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	links, err := hostos.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list the network interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if a := l.Attrs(); a.MasterIndex == bridge.Attrs().Index && podLink.MatchString(a.Name) {
			errs = append(errs, removeLink(l))
		}
	}
	return errors.Join(append(errs, removeLink(bridge))...)
}

// removeLink takes no offence when the link goes with its namespace meanwhile.
func removeLink(l netlink.Link) error {
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove network interface %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// RemoveExceptions takes the rules that let packets of pods pass out of the chain FORWARD of the host's own packet filter.
func RemoveExceptions(interfaces ...string) error {
	var errs []error
	for _, f := range []family{family4, family6} {
		if err := removeExceptions(f, interfaces); err != nil {
			errs = append(errs, fmt.Errorf("remove the exceptions for pods from %s %s %s: %w", f.name, filterTable, forwardChain, err))
		}
	}
	return errors.Join(errs...)
}

func removeExceptions(f family, interfaces []string) error {
	c, err := connection()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: filterTable, Family: f.nft}
	chain, err := c.ListChain(table, forwardChain)
	if err != nil {
		return nil // no such chain
	}
	chain.Table = table
	there, err := c.GetRules(table, chain)
	if err != nil {
		return err
	}
	ours := func(r *nftables.Rule) bool {
		return slices.ContainsFunc(interfaces, func(name string) bool {
			return slices.ContainsFunc([][]expr.Any{acceptBy(inBy(name)), acceptBy(outBy(name, true))},
				func(e []expr.Any) bool { return sameExprs(f.nft, r.Exprs, e) })
		})
	}
	for _, r := range there {
		if ours(r) {
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
	}
	return c.Flush()
}
