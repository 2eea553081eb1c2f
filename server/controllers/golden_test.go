package controllers

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/testkit"
)

// TestArguments keeps the flags of kube-controller-manager as they are, so that a change is one that somebody has looked at.
func TestArguments(t *testing.T) {
	testkit.Golden(t, "args.txt", strings.Join(args(Config{
		ClusterCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")},
		ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
		RootCA:            "/tls/server-ca.crt",
		ServiceAccountKey: "/tls/service.key",
		VolumePlugins:     "/data/agent/volume-plugins",
		SigningCert:       "/tls/client-ca.crt", SigningKey: "/tls/client-ca.key",
		ServingCert: "/tls/server-ca.crt", ServingKey: "/tls/server-ca.key",
	}), "\n")+"\n")
}
