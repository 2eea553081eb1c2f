package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// tableName is the name of our tables, one for IPv4 and one for IPv6.
const tableName = "clusterd-pods"

// socketBuffer in bytes has room for one transaction, which is sent as one
// message, and for the kernel's answers, which come only after that: about 1 KiB
// a rule each way. The kernel takes memory only for what is used of it.
const socketBuffer = 8 << 20

// ruleset keeps the kernel's packet rules equal to the ledger. Every change
// replaces a whole table in one transaction, so a packet sees the old rules or
// the new ones, and what somebody else changed is put right.
type ruleset struct {
	network *Network
	// unavailable says why this kernel has no packet rules; set by start.
	unavailable error
	bridged     bool // packets between pods pass the rules; set by start

	wanted  atomic.Uint64 // counts the changes of the ledger
	mu      sync.Mutex
	applied uint64 // the value of wanted that the kernel's rules include
}

// start puts the rules in place. A kernel without nftables is named once; pods
// then have no way out of the node other than by the host's own rules.
func (r *ruleset) start() error {
	n := r.network
	if r.bridged = filterBridged(); !r.bridged {
		n.log.Warn("the kernel does not filter bridged packets (no br_netfilter): a Service shows its pods the node's address as the client when both are on this node")
	}
	err := r.sync()
	if isUnsupported(err) {
		r.unavailable = fmt.Errorf("this kernel has no nftables NAT: %w", err)
		n.log.Warn("no hostPorts and no masquerading of pods", "error", r.unavailable)
		return nil
	}
	if err != nil {
		return err
	}
	r.letThrough()
	return nil
}

func isUnsupported(err error) bool {
	return slices.ContainsFunc([]error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.ENOENT, unix.ENOSYS},
		func(no error) bool { return errors.Is(err, no) })
}

// sync returns when the rules include all that was in the ledger when it was
// called. Calls at the same time share one transaction.
func (r *ruleset) sync() error {
	mine := r.wanted.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.applied >= mine {
		return nil
	}
	includes := r.wanted.Load()
	if err := r.apply(); err != nil {
		return err
	}
	r.applied = includes
	return nil
}

func (r *ruleset) apply() error {
	n := r.network
	all := n.ledger.All()
	for _, own := range n.ledger.Prefixes() {
		t := tableRules{
			family: familyOf(own.Addr()), bridge: n.cfg.Bridge, own: own.Masked(),
			cluster: n.cfg.ClusterCIDRs, pods: all, bridged: r.bridged,
		}
		if err := t.replace(); err != nil {
			return fmt.Errorf("replace the packet rules %s %s: %w", t.family.name, tableName, err)
		}
	}
	return nil
}

// connection opens one for a single transaction.
func connection() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
	}))
}

// tableRules is what one table is made from.
type tableRules struct {
	family  family
	bridge  string
	own     netip.Prefix
	cluster []netip.Prefix
	pods    []ipam.Allocation
	bridged bool
}

// replace sends the whole table as one transaction: add (so that there is one to
// delete), delete, add again.
func (t tableRules) replace() error {
	c, err := connection()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: tableName, Family: t.family.nft}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	b := builder{conn: c, table: table, family: t.family}
	t.masquerade(b)
	if t.family.is4 {
		t.guardLoopback(b)
	}
	if mapped := t.mapped(); len(mapped) > 0 {
		t.hostPorts(b, mapped)
	}
	return c.Flush()
}

// masquerade gives packets that leave the pods' network the node's address. The
// pods' own addresses stay between pods, wherever they are.
func (t tableRules) masquerade(b builder) {
	outside := b.chain("outside")
	for _, p := range t.ranges() {
		b.rule(outside, b.dst(p), verdict(accept))
	}
	for _, p := range t.family.never {
		b.rule(outside, b.dst(p), verdict(accept))
	}
	b.rule(outside, masquerade())

	post := b.base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, natSourcePriority)
	if t.family.is4 {
		b.rule(post, outBy(t.bridge, true), b.src(t.family.loopback), masquerade())
	}
	for _, p := range t.mappedPods() { // one that calls itself through its hostPort
		pod := netip.PrefixFrom(p, p.BitLen())
		b.rule(post, outBy(t.bridge, true), b.src(pod), b.dst(pod), masquerade())
	}
	if !t.bridged {
		b.rule(post, outBy(t.bridge, true), translated(true), b.src(t.own), masquerade())
	}
	for _, p := range t.ranges() {
		b.rule(post, outBy(t.bridge, false), b.src(p), jump("outside"))
	}
}

// ranges are the addresses of pods of this family.
func (t tableRules) ranges() []netip.Prefix {
	out := []netip.Prefix{t.own}
	for _, p := range t.cluster {
		if p.Addr().Is4() == t.family.is4 && p != t.own {
			out = append(out, p.Masked())
		}
	}
	return out
}

// guardLoopback drops what pods send to the node's 127.0.0.0/8. The bridge has
// route_localnet for the answers to 127.0.0.1:hostPort, which would let in all
// else too (CVE-2020-8558).
func (t tableRules) guardLoopback(b builder) {
	input := b.base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, filterPriority)
	b.rule(input, inBy(t.bridge), b.dst(t.family.loopback), translated(false), verdict(drop))
}

// mapping is one hostPort of one pod in one family.
type mapping struct {
	ipam.Port
	pod netip.Addr
	id  string
}

// mapped returns the hostPorts of this family. The newest pod's come first: when
// the old pod of a port is not deleted yet, the new one has it.
func (t tableRules) mapped() []mapping {
	var out []mapping
	for _, a := range t.pods {
		for _, p := range a.Addresses {
			if p.Addr().Is4() != t.family.is4 {
				continue
			}
			for _, port := range a.Ports {
				if ip := port.HostIP; !ip.IsValid() || ip.Is4() == t.family.is4 {
					out = append(out, mapping{port, p.Addr(), a.ContainerID})
				}
			}
		}
	}
	return out
}

// mappedPods returns the addresses of the pods with hostPorts, each once.
func (t tableRules) mappedPods() []netip.Addr {
	var out []netip.Addr
	for _, m := range t.mapped() {
		out = append(out, m.pod)
	}
	return slices.Compact(out) // a pod's mappings follow each other
}

// hostPorts leads ports of the node to pods: for what comes in and for what the
// node itself sends. From outside nobody gets at ports of the loopback address.
func (t tableRules) hostPorts(b builder, mapped []mapping) {
	ports := b.chain("hostports")
	for _, m := range mapped {
		var to matches
		if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
			to = b.dst(netip.PrefixFrom(m.HostIP, m.HostIP.BitLen()))
		}
		b.comment("sandbox "+m.id).rule(ports, to, toPort(m.Protocol, m.HostPort), b.translate(m.pod, m.ContainerPort))
	}
	pre := b.base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, natDestPriority)
	b.rule(pre, b.notDst(t.family.loopback), toThisNode(), jump("hostports"))
	out := b.base("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, natDestPriority)
	var own matches
	if !t.family.is4 { // there is no route_localnet for ::1
		own = b.notDst(t.family.loopback)
	}
	b.rule(out, own, toThisNode(), jump("hostports"))
}

// watch puts the rules back when somebody deletes them, as `nft flush ruleset`
// does. It wakes up only when packet rules are changed. The returned function
// ends it.
func (r *ruleset) watch(ctx context.Context, running *sync.WaitGroup) (stop func()) {
	if r.unavailable != nil {
		return func() {}
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		r.network.log.Warn("packet rules are not watched", "error", err)
		return func() {}
	}
	running.Go(func() { r.follow(ctx, c) })
	return func() { _ = c.Close() }
}

func (r *ruleset) follow(ctx context.Context, c *netlink.Conn) {
	for ctx.Err() == nil {
		msgs, err := c.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			if ctx.Err() == nil {
				r.network.log.Warn("packet rules are no longer watched", "error", err)
			}
			return
		}
		lost := err != nil // events were dropped: look at everything
		if (lost || slices.ContainsFunc(msgs, isOurDeletion)) && !r.present() {
			r.network.log.Warn("somebody deleted the packet rules of the pods: putting them back")
			if err := r.sync(); err != nil {
				r.network.log.Error("put back the packet rules", "error", err)
			}
		}
		if lost || slices.ContainsFunc(msgs, isForwardChange) {
			r.letThrough()
		}
	}
}

// present tells somebody else's deletion from our own replacement.
func (r *ruleset) present() bool {
	c, err := connection()
	if err != nil {
		return true
	}
	for _, own := range r.network.ledger.Prefixes() {
		if _, err := c.ListTableOfFamily(tableName, familyOf(own.Addr()).nft); err != nil {
			return false
		}
	}
	return true
}
