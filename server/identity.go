package server

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// bindAddress may be unspecified, which is every address of the host.
func (r reader) bindAddress() netip.Addr {
	all := r.Addresses("bind-address")
	if len(all) == 1 && !all[0].IsMulticast() {
		return all[0]
	}
	if len(all) > 0 || r.V.String("bind-address") == "" {
		r.Problem("bind-address", "%q is not one address to listen on", r.V.String("bind-address"))
	}
	return netip.Addr{}
}

func (r reader) advertiseAddress() netip.Addr {
	all := r.Addresses("advertise-address")
	if len(all) == 0 {
		return netip.Addr{}
	}
	if len(all) > 1 || !all[0].IsGlobalUnicast() {
		r.Problem("advertise-address", "%q is not one address by which others can reach the API server", r.V.String("advertise-address"))
	}
	return all[0]
}

// tlsSANs takes IP addresses and DNS names, also with a wildcard as their first label.
func (r reader) tlsSANs() []string {
	all := r.V.Split("tls-san")
	for _, san := range all {
		if _, err := netip.ParseAddr(san); err == nil {
			continue
		}
		name := strings.TrimPrefix(strings.ToLower(san), "*.")
		if validation.IsDNS1123Subdomain(name) != nil {
			r.Problem("tls-san", "%q is neither an IP address nor a DNS name", san)
		}
	}
	return all
}

func (r reader) clusterDomain() string {
	domain := strings.TrimSuffix(r.V.String("cluster-domain"), ".")
	if validation.IsDNS1123Subdomain(domain) != nil {
		r.Problem("cluster-domain", "%q is not a DNS domain", r.V.String("cluster-domain"))
	}
	return domain
}
