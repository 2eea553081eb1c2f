package agent

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAddressesAreWritten: what the node has not given itself stays, and what is right is not written.
func TestAddressesAreWritten(t *testing.T) {
	have := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeExternalIP, Address: "203.0.113.1"}, {Type: v1.NodeHostName, Address: "one"}}
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Status: v1.NodeStatus{Addresses: have}})
	a := &Agent{cfg: Config{NodeName: "one"}, node: client, d: Deps{Log: slog.New(slog.DiscardHandler)}}
	for _, row := range []struct {
		now    []netip.Addr
		want   []v1.NodeAddress
		writes int
	}{
		{[]netip.Addr{netip.MustParseAddr("192.0.2.1")}, have, 0},
		{
			[]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("fd00::2")},
			append([]v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeInternalIP, Address: "fd00::2"}}, have[1:]...), 1,
		},
	} {
		client.ClearActions()
		a.cfg.NodeIPs = row.now
		if err := a.writeAddresses(t.Context()); err != nil {
			t.Fatal(err)
		}
		writes := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "patch" {
				writes++
			}
		}
		n, err := client.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil || writes != row.writes || !slices.Equal(n.Status.Addresses, row.want) {
			t.Errorf("%v: %d writes, %v, %v, want %d and %v", row.now, writes, n.Status.Addresses, err, row.writes, row.want)
		}
	}
}
