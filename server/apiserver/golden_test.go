package apiserver

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/testkit"
)

// TestArguments keeps the flags of kube-apiserver as they are, so that a change is one that somebody has looked at.
func TestArguments(t *testing.T) {
	testkit.Golden(t, "args.txt", strings.Join(args(Config{
		BindAddress:      netip.MustParseAddr("0.0.0.0"),
		Port:             6443,
		AdvertiseAddress: netip.MustParseAddr("192.0.2.5"),
		ServiceCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
		NodePorts:        "30000-32767",
		ClusterDomain:    "cluster.local",
		Files: Files{
			Cert: "/tls/api.crt", Key: "/tls/api.key", ClientCA: "/tls/client-ca.crt", ServerCA: "/tls/server-ca.crt",
			RequestHeaderCA: "/tls/request-header-ca.crt", ProxyCert: "/tls/front-proxy.crt", ProxyKey: "/tls/front-proxy.key",
			KubeletCert: "/tls/kubelet.crt", KubeletKey: "/tls/kubelet.key", ServiceAccountKey: "/tls/service.key",
		},
	}), "\n")+"\n")
}
