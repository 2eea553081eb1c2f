package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"k8s.io/component-base/version"

	protocol "github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/server/join"
)

func joinConfig(cfg Config, d Deps) join.Config {
	return join.Config{
		RESTConfig:    d.Transport.Config(Admin(), "clusterd/join"),
		TokenFile:     d.Dir.ServerToken(),
		NodeTokenFile: d.Dir.NodeToken(),
		Changes:       d.AddressChanges,
		Info:          func() (protocol.Info, error) { return info(cfg, d) },
		Taken:         func(address string) bool { return taken(cfg, d, address) },
		Shared:        cfg.Shared(),
	}
}

// newOwnName makes sure that no two servers, and no server and another node, have the same name.
func newOwnName(cfg Config, d Deps) lifecycle.Component {
	key := func() (string, error) { return fingerprint(d) }
	return join.NewOwnName(d.Transport.Config(Admin(), "clusterd/name"), ownNode(cfg), key, d.Log)
}

// info describes the cluster to its nodes.
func info(cfg Config, d Deps) (protocol.Info, error) {
	serverCA, _ := d.PKI.Path(pki.ServerCA)
	clientCA, _ := d.PKI.Path(pki.ClientCA)
	servers, err1 := os.ReadFile(serverCA)
	clients, err2 := os.ReadFile(clientCA)
	return protocol.Info{
		Servers:        []string{net.JoinHostPort(advertise(cfg, d).String(), strconv.Itoa(cfg.HTTPSListenPort))},
		ServerCA:       string(servers),
		ClientCA:       string(clients),
		ClusterCIDRs:   cfg.ClusterCIDRs,
		ServiceCIDRs:   cfg.ServiceCIDRs,
		FlannelBackend: cfg.FlannelBackend,
		ClusterDNS:     cfg.ClusterDNS,
		ClusterDomain:  cfg.ClusterDomain,
		DNS:            runsDNS(cfg),
		Version:        version.Get().GitVersion,
	}, errors.Join(err1, err2)
}

// runsDNS is whether the nodes run the cluster's DNS.
func runsDNS(cfg Config) bool { return !slices.Contains(cfg.Disable, "dns") }

// publishDNS is nil when the nodes run none.
func publishDNS(cfg Config, d Deps) join.PublishDNS {
	if !runsDNS(cfg) {
		return nil
	}
	return d.PublishDNS
}

// ownNode is the name of the node in this process, empty if there is none.
func ownNode(cfg Config) string {
	if cfg.DisableAgent {
		return ""
	}
	return cfg.NodeName
}

// taken is whether an address is the server's or a Service's, so that no node may show a certificate for it.
func taken(cfg Config, d Deps, address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return true
	}
	a = a.Unmap()
	return a.IsLoopback() || a == advertise(cfg, d) || slices.Contains(d.NodeIPs(), a) ||
		slices.ContainsFunc(cfg.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}
