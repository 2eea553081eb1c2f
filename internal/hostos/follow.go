package hostos

import (
	"errors"
	"net"
	"net/netip"
	"slices"
)

// Follow is what becomes of a node's addresses, of which the host had the given ones at first: they stay as long as the host
// has them, and one that it has no longer is replaced by NodeAddresses' choice of its family. A host without any address,
// as one whose cable is out may be, keeps them.
func Follow(first []netip.Addr) ([]netip.Addr, error) {
	local, err := LocalAddresses()
	if err != nil {
		return nil, err
	}
	has := func(a netip.Addr) bool {
		return slices.ContainsFunc(local, func(ip net.IP) bool { l, ok := netip.AddrFromSlice(ip); return ok && l.Unmap() == a })
	}
	if !slices.ContainsFunc(first, func(a netip.Addr) bool { return !has(a) }) {
		return first, nil
	}
	chosen, err := NodeAddresses()
	if errors.Is(err, ErrNoAddress) {
		return first, nil
	}
	return replaced(first, has, chosen), err
}

// replaced puts a chosen address in the place of one of its family that the host has not.
func replaced(first []netip.Addr, has func(netip.Addr) bool, chosen []netip.Addr) []netip.Addr {
	now := slices.Clone(first)
	for i, a := range now {
		j := slices.IndexFunc(chosen, func(c netip.Addr) bool { return c.Is4() == a.Is4() })
		if !has(a) && j >= 0 {
			now[i] = chosen[j]
		}
	}
	return now
}
