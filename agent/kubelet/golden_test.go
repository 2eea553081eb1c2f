package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"

	"github.com/clusterd/clusterd/internal/testkit"
)

func testConfig() Config {
	return Config{
		NodeName:      "one",
		NodeIPs:       []netip.Addr{netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::5")},
		Labels:        map[string]string{"tier": "test"},
		Taints:        []v1.Taint{{Key: "only", Value: "tests", Effect: v1.TaintEffectNoSchedule}},
		RootDir:       "/data/agent/kubelet",
		PodLogsDir:    "/var/log/pods",
		CertDir:       "/data/agent/tls/kubelet",
		VolumePlugins: "/data/agent/volume-plugins",
		Socket:        "/run/clusterd/containerd/containerd.sock",
		ManifestPath:  "/data/agent/pod-manifests",
		ManifestURL:   "http://192.0.2.7/pods.yaml",
		ClusterDNS:    []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		ClusterDomain: "cluster.local",
		ResolvConf:    "/run/clusterd/resolv.conf",
		ClientCA:      "/data/server/tls/client-ca.crt",
		Cert:          "/data/server/tls/serving-kubelet.crt", Key: "/data/server/tls/serving-kubelet.key",
	}
}

// TestConfiguration keeps the kubelet's whole configuration as it is, upstream's defaults with it, so that a change is one
// that somebody has looked at.
func TestConfiguration(t *testing.T) {
	k, err := New(testConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.EncodeKubeletConfig(&k.server.KubeletConfiguration, kubeletv1beta1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "config.yaml", string(b))
	s := k.server.KubeletFlags
	testkit.Golden(t, "flags.txt", fmt.Sprintf("kubeconfig=%s\nhostname-override=%s\nnode-ip=%s\nnode-labels=%v\nroot-dir=%s\ncert-dir=%s\n",
		s.KubeConfig, s.HostnameOverride, s.NodeIP, s.NodeLabels, s.RootDirectory, s.CertDirectory))
}

// TestUsersConfigurationFile shows which of our choices a user's file changes: what we prefer, not what the node requires.
func TestUsersConfigurationFile(t *testing.T) {
	c := testConfig()
	c.Args = []string{"config=testdata/user.yaml", "max-pods=7"}
	k, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	got := k.server.KubeletConfiguration
	if got.EvictionHard["nodefs.available"] != "1%" || !got.SerializeImagePulls || got.MaxPods != 7 {
		t.Errorf("the user's choices are not taken: eviction at %v, serial pulls %t, %d pods", got.EvictionHard, got.SerializeImagePulls, got.MaxPods)
	}
	if got.Authentication.Anonymous.Enabled || got.ReadOnlyPort != 0 || got.ClusterDomain != "cluster.local" {
		t.Errorf("the file changes what the node requires: anonymous %t, read-only port %d, domain %s",
			got.Authentication.Anonymous.Enabled, got.ReadOnlyPort, got.ClusterDomain)
	}
}

func TestWrongArguments(t *testing.T) {
	for arg, want := range map[string]string{
		"bogus=1":                     `no flag "bogus"`,
		"config=/does/not":            "config=/does/not",
		"max-pods=many":               "max-pods=many",
		"max-open-files=-1":           "kubelet-arg",
		"image-gc-high-threshold=101": "kubelet-arg",
	} {
		c := testConfig()
		c.Args = []string{arg}
		if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", arg, err, want)
		}
	}
}

// TestStopsWhileWaiting ends a kubelet that may not be made yet. One that runs cannot be ended without ending the process,
// so the rest of a component's contract is for the tests of the whole program.
func TestStopsWhileWaiting(t *testing.T) {
	c := testConfig()
	c.Wait = make(chan struct{})
	k, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, func() { t.Error("ready") }) }()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("did not end")
	}
}
