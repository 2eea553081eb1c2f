package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/kubernetes/cmd/kubelet/app/options"
)

// TestFileSetsNoGates has a configuration file with feature gates: by the time the kubelet starts they are not its to set.
func TestFileSetsNoGates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\nfeatureGates: {NodeSwap: true}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := options.NewKubeletServer()
	if err != nil {
		t.Fatal(err)
	}
	rest, err := fromFile(s, []string{"config=" + file, "v=2"})
	if err != nil || len(rest) != 1 || s.MaxPods != 7 {
		t.Fatalf("rest %q, at most %d pods, %v", rest, s.MaxPods, err)
	}
	if len(s.FeatureGates) != 0 {
		t.Errorf("the kubelet would set %v", s.FeatureGates)
	}
}

// TestIdleStats pins where cAdvisor keeps how long it rests.
func TestIdleStats(t *testing.T) {
	s, err := options.NewKubeletServer()
	if err != nil {
		t.Fatal(err)
	}
	s.RootDirectory, s.ContainerRuntimeEndpoint = t.TempDir(), "unix:///no/such.sock"
	c, err := newStats(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if limit := longestRest(c); limit == nil || *limit != idleStats {
		t.Errorf("the longest rest of %T is %v", c, limit)
	}
}
