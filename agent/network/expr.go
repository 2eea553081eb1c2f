package network

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Priorities of our chains. At the same hook a hostPort wins over a NodePort of
// the same number, which the usual -100 of kube-proxy would leave to chance.
const (
	natDestPriority   = -105
	natSourcePriority = 100
	filterPriority    = 0
)

// protocols of hostPorts, with their numbers.
var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

const (
	accept = expr.VerdictAccept
	drop   = expr.VerdictDrop
)

// family is where the headers of IPv4 and IPv6 differ.
type family struct {
	name     string
	is4      bool
	nft      nftables.TableFamily
	proto    uint32
	src, dst uint32 // offsets of the addresses, bytes
	loopback netip.Prefix
	never    []netip.Prefix // destinations that are never masqueraded
}

var (
	family4 = family{
		name: "ip", is4: true, nft: nftables.TableFamilyIPv4, proto: unix.NFPROTO_IPV4, src: 12, dst: 16,
		loopback: netip.MustParsePrefix("127.0.0.0/8"),
		never:    []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4")},
	}
	family6 = family{
		name: "ip6", nft: nftables.TableFamilyIPv6, proto: unix.NFPROTO_IPV6, src: 8, dst: 24,
		loopback: netip.MustParsePrefix("::1/128"),
		never:    []netip.Prefix{netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10")},
	}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return family4
	}
	return family6
}

// matches is a piece of a rule: conditions, or what happens when they hold.
type matches []expr.Any

// builder collects the chains and rules of one transaction.
type builder struct {
	conn   *nftables.Conn
	table  *nftables.Table
	family family
	note   string
}

// comment returns a builder whose rules carry text for whoever lists them.
func (b builder) comment(text string) builder {
	b.note = text
	return b
}

func (b builder) chain(name string) *nftables.Chain {
	return b.conn.AddChain(&nftables.Chain{Name: name, Table: b.table})
}

// base makes a chain that packets enter at a hook, and pass unless a rule drops them.
func (b builder) base(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	pass := nftables.ChainPolicyAccept
	return b.conn.AddChain(&nftables.Chain{
		Name: name, Table: b.table, Type: kind, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority), Policy: &pass,
	})
}

func (b builder) rule(c *nftables.Chain, parts ...matches) {
	r := &nftables.Rule{Table: b.table, Chain: c, Exprs: slices.Concat(parts...)}
	if b.note != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, b.note)
	}
	b.conn.AddRule(r)
}

func (b builder) src(p netip.Prefix) matches { return b.address(b.family.src, p, expr.CmpOpEq) }

func (b builder) dst(p netip.Prefix) matches { return b.address(b.family.dst, p, expr.CmpOpEq) }

func (b builder) notDst(p netip.Prefix) matches { return b.address(b.family.dst, p, expr.CmpOpNeq) }

func (b builder) address(offset uint32, p netip.Prefix, op expr.CmpOp) matches {
	addr := p.Masked().Addr().AsSlice()
	size := uint32(len(addr))
	m := matches{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}}
	if !p.IsSingleIP() {
		m = append(m, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: ipNet(p).Mask, Xor: make([]byte, size)})
	}
	return append(m, &expr.Cmp{Op: op, Register: 1, Data: addr})
}

// translate sends the packet to a pod.
func (b builder) translate(to netip.Addr, port uint16) matches {
	return matches{
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: b.family.proto, RegAddrMin: 1, RegProtoMin: 2},
	}
}

func outBy(ifName string, is bool) matches {
	op := expr.CmpOpEq
	if !is {
		op = expr.CmpOpNeq
	}
	return matches{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: ifNameData(ifName)}}
}

func inBy(ifName string) matches {
	return matches{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Register: 1, Data: ifNameData(ifName)}}
}

func ifNameData(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// toThisNode holds for packets to any of the node's own addresses.
func toThisNode() matches {
	return matches{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// connDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const connDNAT = 1 << 5

// translated asks whether the destination of the packet's connection was changed.
func translated(is bool) matches {
	op := expr.CmpOpNeq
	if !is {
		op = expr.CmpOpEq
	}
	none := make([]byte, 4)
	return matches{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(connDNAT), Xor: none},
		&expr.Cmp{Op: op, Register: 1, Data: none},
	}
}

func toPort(protocol string, port uint16) matches {
	return matches{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Register: 1, Data: []byte{protocols[protocol]}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// masquerade picks a random port, so that two flows that start at the same time
// do not race for one.
func masquerade() matches { return matches{&expr.Masq{FullyRandom: true}} }

func jump(chain string) matches {
	return matches{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func verdict(k expr.VerdictKind) matches { return matches{&expr.Verdict{Kind: k}} }

// sameExprs compares two rules by what they do, leaving out counters.
func sameExprs(fam nftables.TableFamily, a, b []expr.Any) bool {
	encode := func(es []expr.Any) []byte {
		var out []byte
		for _, e := range es {
			if _, is := e.(*expr.Counter); is {
				continue
			}
			data, err := expr.Marshal(byte(fam), e)
			if err != nil {
				return nil
			}
			out = append(out, data...)
		}
		return out
	}
	x := encode(a)
	return x != nil && bytes.Equal(x, encode(b))
}
