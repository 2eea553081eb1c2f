package apiserver

import (
	"net/netip"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/clusterd/clusterd/internal/testkit"
)

// golden is a server on a datastore in the process.
func golden() Config {
	return Config{
		BindAddress:      netip.MustParseAddr("0.0.0.0"),
		Port:             6443,
		AdvertiseAddress: func() netip.Addr { return netip.MustParseAddr("192.0.2.5") },
		ServiceCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
		NodePorts:        "30000-32767",
		ClusterDomain:    "cluster.local",
		Files: Files{
			Cert: "/tls/api.crt", Key: "/tls/api.key", ClientCA: "/tls/client-ca.crt", ServerCA: "/tls/server-ca.crt",
			RequestHeaderCA: "/tls/request-header-ca.crt", ProxyCert: "/tls/front-proxy.crt", ProxyKey: "/tls/front-proxy.key",
			KubeletCert: "/tls/kubelet.crt", KubeletKey: "/tls/kubelet.key", ServiceAccountKey: "/tls/service.key",
		},
		Datastore: func() (*kubernetes.Client, error) { return nil, nil },
	}
}

// TestArguments keeps the flags of kube-apiserver as they are, so that a change is one that somebody has looked at.
func TestArguments(t *testing.T) {
	testkit.Golden(t, "args.txt", strings.Join(args(golden()), "\n")+"\n")
}

// TestArgumentsWithEtcd keeps those that are other for an etcd.
func TestArgumentsWithEtcd(t *testing.T) {
	c := golden()
	c.Datastore, c.Etcd = nil, Etcd{Servers: []string{"https://192.0.2.7:2379", "https://192.0.2.8:2379"}, CA: "/etcd/ca.crt", Cert: "/etcd/c.crt", Key: "/etcd/c.key"}
	testkit.Golden(t, "etcd.txt", strings.Join(etcdArgs(c), "\n")+"\n")
}
