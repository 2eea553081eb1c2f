package proxy

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/testkit"
)

func testConfig() Config {
	return Config{
		NodeName:     "one",
		Mode:         "nftables",
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")},
		Kubeconfig:   "/tls/kube-proxy.yaml",
		NodeKnown:    func(context.Context) error { return nil },
	}
}

// TestArguments keeps the flags of kube-proxy, and its kubeconfig, as they are, so that a change is one that somebody has
// looked at.
func TestArguments(t *testing.T) {
	testkit.Golden(t, "args.txt", strings.Join(args(testConfig()), "\n")+"\n")
	testkit.Golden(t, "kubeconfig.yaml", string(kubeconfig("https://127.0.0.1:1234", []byte("certificate"), "secret")))
}

func TestWrongArguments(t *testing.T) {
	for arg, want := range map[string]string{
		"bogus=1":                     `no flag "bogus"`,
		"config=/etc/proxy.yaml":      "cannot be used here",
		"--cleanup":                   "cannot be used here",
		"detect-local-mode=telepathy": "kube-proxy-arg",
	} {
		c := testConfig()
		c.Args = []string{arg}
		if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", arg, err, want)
		}
	}
}
