package network

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Docker and ufw let the host drop what it forwards, in the chain FORWARD of the
// iptables table filter. A drop there is final whatever other tables accept, so
// the pods' bridge and the tunnel get two rules each at the head of that chain, in
// the form that iptables itself would write.
const (
	filterTable  = "filter"
	forwardChain = "FORWARD"
)

// letThrough adds those rules where forwarded packets are dropped by default and
// the rules are missing. It is not fatal: the host's owner may mean it.
func (r *ruleset) letThrough() {
	for _, own := range r.network.ledger.Prefixes() {
		f := familyOf(own.Addr())
		added, err := letThroughFamily(f, r.network.interfaces())
		if err != nil {
			r.network.log.Warn("the host drops what it forwards, and the pods are not excepted", "family", f.name, "error", err)
		}
		if added {
			r.network.log.Info("the host drops what it forwards: excepted the pods", "family", f.name, "interfaces", r.network.interfaces())
		}
	}
}

// interfaces are those that packets of pods pass.
func (n *Network) interfaces() []string {
	if n.cfg.Tunnel == "" {
		return []string{n.cfg.Bridge}
	}
	return []string{n.cfg.Bridge, n.cfg.Tunnel}
}

func letThroughFamily(f family, interfaces []string) (added bool, err error) {
	c, err := connection()
	if err != nil {
		return false, err
	}
	table := &nftables.Table{Name: filterTable, Family: f.nft}
	chain, err := c.ListChain(table, forwardChain)
	if err != nil || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
		return false, nil // no such chain, or it lets everything through
	}
	chain.Table = table
	there, err := c.GetRules(table, chain)
	if err != nil {
		return false, err
	}
	var rules [][]expr.Any
	for _, name := range interfaces {
		rules = append(rules, acceptBy(inBy(name)), acceptBy(outBy(name, true)))
	}
	for _, want := range rules {
		if slices.ContainsFunc(there, func(r *nftables.Rule) bool { return sameExprs(f.nft, r.Exprs, want) }) {
			continue
		}
		c.InsertRule(&nftables.Rule{Table: table, Chain: chain, Exprs: want})
		added = true
	}
	return added, c.Flush()
}

func acceptBy(m matches) []expr.Any {
	return slices.Concat(m, matches{&expr.Counter{}}, verdict(accept))
}

// isOurDeletion and isForwardChange read the kernel's news about packet rules.
func isOurDeletion(m netlink.Message) bool {
	return isEvent(m, unix.NFT_MSG_DELTABLE) && attribute(m, unix.NFTA_TABLE_NAME) == tableName
}

func isForwardChange(m netlink.Message) bool {
	return isEvent(m, unix.NFT_MSG_NEWCHAIN) && attribute(m, unix.NFTA_CHAIN_NAME) == forwardChain
}

func isEvent(m netlink.Message, kind uint16) bool {
	return uint16(m.Header.Type) == unix.NFNL_SUBSYS_NFTABLES<<8|kind
}

// nfgenmsgLen is the length in bytes of struct nfgenmsg, before the attributes.
const nfgenmsgLen = 4

func attribute(m netlink.Message, kind uint16) string {
	if len(m.Data) < nfgenmsgLen {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[nfgenmsgLen:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == kind {
			return ad.String()
		}
	}
	return ""
}
