package ipam

import (
	"fmt"
	"net/netip"
)

// pool is one prefix and the place where the last search in it ended.
type pool struct {
	prefix  netip.Prefix
	gateway netip.Addr
	last    netip.Addr // the youngest given address; the next search begins behind it
}

func newPools(prefixes []netip.Prefix) ([]*pool, error) {
	if n := len(prefixes); n == 0 || n > 2 || n == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4() {
		return nil, fmt.Errorf("pod CIDRs %v: want one, or one for IPv4 and one for IPv6", prefixes)
	}
	var pools []*pool
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().BitLen()-p.Bits() < 2 {
			return nil, fmt.Errorf("pod CIDR %s has no room for pods", p)
		}
		p = p.Masked()
		gateway := p.Addr().Next()
		pools = append(pools, &pool{prefix: p, gateway: gateway, last: gateway})
	}
	return pools, nil
}

// resumeAfter lets the next search begin behind last when that is of this pool.
func (p *pool) resumeAfter(last netip.Addr) {
	if p.prefix.Contains(last) {
		p.last = last
	}
}

// next finds the first address behind the last one that nobody owns. It looks
// at no address twice, so it ends after one round at the latest.
func (p *pool) next(owner map[netip.Addr]Key) (netip.Addr, error) {
	a := p.after(p.last)
	for range len(owner) + 1 {
		if _, used := owner[a]; !used {
			p.last = a
			return a, nil
		}
		if a = p.after(a); a == p.after(p.last) {
			break
		}
	}
	return netip.Addr{}, fmt.Errorf("pod CIDR %s: %w", p.prefix, ErrFull)
}

// after returns the next address that a pod may have: not the prefix's own, not
// the gateway, not IPv4's broadcast. After the last one comes the first.
func (p *pool) after(a netip.Addr) netip.Addr {
	a = a.Next()
	if !p.prefix.Contains(a) || p.isBroadcast(a) {
		a = p.gateway.Next()
	}
	return a
}

func (p *pool) isBroadcast(a netip.Addr) bool {
	return a.Is4() && !p.prefix.Contains(a.Next())
}
