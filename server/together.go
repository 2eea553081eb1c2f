package server

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/upstream"
)

// The limits of upstream's service and node address allocators, in bits of the prefix: {IPv4, IPv6}.
var (
	widestService   = [2]int{12, 108}
	narrowestSvc    = [2]int{28, 124}
	nodeMask        = [2]int{24, 64}
	maxNodeMaskBits = 16
)

// checkTogether reports values that are right by themselves but do not fit each other. Those that were already found
// wrong are empty here and are passed over.
func (r reader) checkTogether(cfg Config) {
	r.checkFamilies(cfg)
	r.checkOverlap(cfg)
	r.checkSizes(cfg)
	r.checkDNS(cfg)
	r.checkNodeIPs(cfg)
	r.checkPorts(cfg)
	r.checkBind(cfg)
	r.checkJoin(cfg)
}

// checkJoin: a server that joins others keeps its state where they do.
func (r reader) checkJoin(cfg Config) {
	token := "token"
	if r.V.String("token-file") != "" {
		token = "token-file"
	}
	switch {
	case cfg.Join == "":
	case !cfg.Shared() && r.V.String("datastore-endpoint") == "":
		r.Problem("join", "servers share a datastore: give the --datastore-endpoint that the others have; a file is for one server")
	case cfg.Datastore.Local():
		r.Problem("join", "servers share a datastore, and a file is for one server: give another --datastore-endpoint, to the others too")
	case cfg.Token != "" && cfg.CAHash == "":
		r.Problem(token, "has no hash of the servers' authority, K10...::, by which they could be told from an impostor: give the whole of server/server-token in the data directory of one of them, or leave --join out")
	}
}

func (r reader) checkFamilies(cfg Config) {
	pods, services := families(cfg.ClusterCIDRs), families(cfg.ServiceCIDRs)
	if len(pods) > 0 && len(services) > 0 && !slices.Equal(pods, services) {
		r.Problem("service-cidr", "has %s, but cluster-cidr has %s: they need the same families in the same order",
			strings.Join(services, " and "), strings.Join(pods, " and "))
	}
}

func families(cidrs []netip.Prefix) []string {
	var all []string
	for _, c := range cidrs {
		all = append(all, family(c.Addr()))
	}
	return all
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (r reader) checkOverlap(cfg Config) {
	for _, pods := range cfg.ClusterCIDRs {
		for _, services := range cfg.ServiceCIDRs {
			if pods.Overlaps(services) {
				r.Problem("service-cidr", "%s overlaps the cluster-cidr %s", services, pods)
			}
		}
	}
}

func (r reader) checkSizes(cfg Config) {
	for _, c := range cfg.ServiceCIDRs {
		i := index(c)
		if c.Bits() < widestService[i] || c.Bits() > narrowestSvc[i] {
			r.Problem("service-cidr", "%s: the prefix of an %s network has to be from /%d to /%d", c, family(c.Addr()), widestService[i], narrowestSvc[i])
		}
	}
	if slices.ContainsFunc(cfg.ControllerManagerArgs, setsNodeMask) {
		return
	}
	for _, c := range cfg.ClusterCIDRs {
		narrowest := nodeMask[index(c)]
		if c.Bits() < narrowest-maxNodeMaskBits || c.Bits() > narrowest {
			r.Problem("cluster-cidr", "%s: the prefix of an %s network has to be from /%d to /%d, since each node gets a /%d of it",
				c, family(c.Addr()), narrowest-maxNodeMaskBits, narrowest, narrowest)
		}
	}
}

// setsNodeMask is whether the user decides how much of the pods' network a node gets, and so the limits.
func setsNodeMask(arg string) bool { return strings.HasPrefix(arg, "node-cidr-mask-size") }

func index(c netip.Prefix) int {
	if c.Addr().Is4() {
		return 0
	}
	return 1
}

// checkDNS also refuses the first address of a network, which is that of the API server's own Service.
func (r reader) checkDNS(cfg Config) {
	for _, a := range cfg.ClusterDNS {
		i := slices.IndexFunc(cfg.ServiceCIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
		switch {
		case len(cfg.ServiceCIDRs) == 0:
		case i < 0:
			r.Problem("cluster-dns", "%s is not inside the service-cidr %s", a, upstream.Join(cfg.ServiceCIDRs))
		case a == cfg.ServiceCIDRs[i].Addr() || a == cfg.ServiceCIDRs[i].Addr().Next():
			r.Problem("cluster-dns", "%s is reserved: the first addresses of a service-cidr are its own and the API server's", a)
		}
	}
	if options.TooMany(cfg.ClusterDNS, func(a netip.Addr) netip.Addr { return a }) {
		r.Problem("cluster-dns", "takes one address, or one IPv4 and one IPv6 address")
	}
}

// checkNodeIPs: a node inside a network of the cluster would lose its way to it.
func (r reader) checkNodeIPs(cfg Config) {
	for _, c := range slices.Concat(cfg.ClusterCIDRs, cfg.ServiceCIDRs) {
		for _, a := range cfg.NodeIPs {
			if c.Contains(a) {
				r.Problem("node-ip", "%s is inside %s, which belongs to the cluster", a, c)
			}
		}
		if a := cfg.AdvertiseAddress; a.IsValid() && c.Contains(a) {
			r.Problem("advertise-address", "%s is inside %s, which belongs to the cluster", a, c)
		}
	}
	if a := cfg.AdvertiseAddress; a.IsValid() && len(cfg.ServiceCIDRs) > 0 && family(a) != family(cfg.ServiceCIDRs[0].Addr()) {
		r.Problem("advertise-address", "%s is not of the first service-cidr's family %s", a, family(cfg.ServiceCIDRs[0].Addr()))
	}
}

func (r reader) checkPorts(cfg Config) {
	if cfg.ServiceNodePortRange.Contains(cfg.HTTPSListenPort) {
		r.Problem("https-listen-port", "%d is inside the service-node-port-range %s", cfg.HTTPSListenPort, cfg.ServiceNodePortRange.String())
	}
}

// checkBind refuses an API server that listens on loopback only where there will be pods: each network namespace has a
// loopback of its own, so the Service kubernetes would lead nowhere. With an advertise-address it is the user's to lead
// connections there to the port.
func (r reader) checkBind(cfg Config) {
	if cfg.BindAddress.IsLoopback() && r.V.String("advertise-address") == "" && !cfg.DisableAgent {
		r.Problem("bind-address", "pods cannot reach the API server at %s: give another address, or with --advertise-address one that leads to it, or make no node with --disable-agent",
			cfg.BindAddress)
	}
}
