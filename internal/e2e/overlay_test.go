//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// far is a node that exists in the API alone, as one looks that has joined.
func far(backend string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "far", Annotations: map[string]string{
			"clusterd.io/network-backend": backend, "clusterd.io/network-address": "10.77.0.99", "clusterd.io/network-mac": "0a:5a:00:00:00:63",
		}},
		Spec: corev1.NodeSpec{PodCIDR: "10.42.99.0/24", PodCIDRs: []string{"10.42.99.0/24"}},
	}
}

// testOverlay lets a second node come, move and go.
func (s *suite) testOverlay(t *testing.T) {
	s.wantTunnel(t, "alone", "1450", nil)
	self, err := s.client.CoreV1().Nodes().Get(t.Context(), s.Node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"backend": "vxlan", "address": s.Node.Addr(), "external-address": "203.0.113.5"} {
		if got := self.Annotations["clusterd.io/network-"+name]; got != want {
			t.Errorf("the node tells the others the %s %q, want %q", name, got, want)
		}
	}
	nodes := s.client.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), far("vxlan"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	remove := func(ctx context.Context) { _ = nodes.Delete(ctx, "far", metav1.DeleteOptions{}) }
	t.Cleanup(func() { remove(context.WithoutCancel(t.Context())) })
	route := "10.42.99.0/24 via 10.42.99.1 dev clusterd-vx"
	s.wantTunnel(t, "with another node", "1450", []string{route, "0a:5a:00:00:00:63 dst 10.77.0.99 self permanent", "10.42.99.1 lladdr 0a:5a:00:00:00:63 PERMANENT"})

	moved := []byte(`{"metadata":{"annotations":{"clusterd.io/network-address":"10.77.0.98"}}}`)
	if _, err := nodes.Patch(t.Context(), "far", types.MergePatchType, moved, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wantTunnel(t, "after that moved", "1450", []string{route, "0a:5a:00:00:00:63 dst 10.77.0.98 self permanent"})
	remove(t.Context())
	s.wantTunnel(t, "after that left", "1450", nil)
}

// wantTunnel waits until what leads to other nodes is what the lines say, nothing at all for none.
func (s *suite) wantTunnel(t *testing.T, when, mtu string, lines []string) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		out, err := s.Node.Output(ctx, "sh", "-c", "ip -o link show dev clusterd0; ip route show proto 205;"+
			"ip -o link show dev clusterd-vx 2>/dev/null && bridge fdb show dev clusterd-vx && ip neigh show dev clusterd-vx nud permanent; true")
		missing := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(out, l) })
		bare := strings.Contains(out, " via ") || strings.Contains(out, "clusterd-vx")
		if err != nil || len(missing) > 0 || len(lines) == 0 && bare || !strings.Contains(out, "mtu "+mtu+" ") {
			return fmt.Sprintf("%s: %v, not in it %q, want MTU %s:\n%s", when, err, missing, mtu, out)
		}
		return ""
	})
}

// TestBackends changes how nodes reach each other from one start to the next, with no orderly end between them.
func TestBackends(t *testing.T) {
	c := newCluster(t, "backends")
	s := start(t, c)
	if _, err := s.client.CoreV1().Nodes().Create(t.Context(), far("vxlan"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wantTunnel(t, "with vxlan", "1450", []string{"dev clusterd-vx"})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--flannel-backend=host-gw"}
	s.start(t)
	eventually(t, podTimeout, func(context.Context) string {
		if log := s.Log(); !strings.Contains(log, "node far: its backend is vxlan, here it is host-gw") {
			return "the node of another backend is not named"
		}
		return ""
	})
	patch := []byte(`{"metadata":{"annotations":{"clusterd.io/network-backend":"host-gw"}}}`)
	if _, err := s.client.CoreV1().Nodes().Patch(t.Context(), "far", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.wantTunnel(t, "with host-gw", "1500", []string{"10.42.99.0/24 via 10.77.0.99 dev eth0"})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--flannel-backend=none"}
	s.start(t)
	s.wantTunnel(t, "with none", "1500", nil)
}
