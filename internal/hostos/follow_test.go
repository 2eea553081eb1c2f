package hostos

import (
	"net/netip"
	"slices"
	"testing"
)

func TestReplaced(t *testing.T) {
	t.Parallel()
	ips := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	for name, row := range map[string]struct{ first, local, chosen, want []netip.Addr }{
		"nothing gone":         {ips("10.0.0.1"), ips("10.0.0.1", "10.0.0.2"), ips("10.0.0.2"), ips("10.0.0.1")},
		"gone":                 {ips("10.0.0.1"), ips("10.0.0.2"), ips("10.0.0.2"), ips("10.0.0.2")},
		"one family gone":      {ips("10.0.0.1", "fd00::1"), ips("10.0.0.1", "fd00::2"), ips("10.0.0.1", "fd00::2"), ips("10.0.0.1", "fd00::2")},
		"family without other": {ips("10.0.0.1", "fd00::1"), ips("10.0.0.2"), ips("10.0.0.2"), ips("10.0.0.2", "fd00::1")},
		"the order stays":      {ips("fd00::1", "10.0.0.1"), nil, ips("10.0.0.2", "fd00::2"), ips("fd00::2", "10.0.0.2")},
	} {
		has := func(a netip.Addr) bool { return slices.Contains(row.local, a) }
		if got := replaced(row.first, has, row.chosen); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}
