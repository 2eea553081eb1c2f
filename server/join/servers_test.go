package join

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// endpoints are those of the Service kubernetes.
func endpoints(addresses ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Ports: []discovery.EndpointPort{{Port: ptr.To[int32](6443)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{a}})
	}
	return s
}

// TestServersAreFollowed has servers come and go.
func TestServersAreFollowed(t *testing.T) {
	const path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	api := kubeapi.New(t)
	api.Define("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true)
	api.Put(path, endpoints("192.0.2.2", "192.0.2.1"))
	client, err := kubernetes.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := newServers(client)
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan []string), make(chan struct{})
	go func() {
		s.follow(ctx, func() { changes <- s.known() })
		close(ended)
	}()
	next := func() []string {
		select {
		case all := <-changes:
			return all
		case <-time.After(30 * time.Second):
			t.Fatal("nobody is told")
			return nil
		}
	}
	if all := next(); !slices.Equal(all, []string{"192.0.2.1:6443", "192.0.2.2:6443"}) {
		t.Errorf("there are %v", all)
	}
	api.Put(path, endpoints()) // as when the last one that stops takes itself out
	api.Put(path, endpoints("192.0.2.2"))
	if all := next(); !slices.Equal(all, []string{"192.0.2.2:6443"}) || !s.has("192.0.2.2") || s.has("192.0.2.1") {
		t.Errorf("there are %v", all)
	}
	cancel()
	<-ended
}

// TestFurtherServerTellsOfAll has one that starts and knows of no other by itself.
func TestFurtherServerTellsOfAll(t *testing.T) {
	info := join.Info{Servers: []string{"192.0.2.1:6443"}, ServerCA: "a", ClientCA: "b", ClusterDomain: "c",
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10")}}
	client := fake.NewClientset()
	told := func(own string, shared bool) string {
		t.Helper()
		info.Servers = []string{own}
		j := &Joining{client: client, log: slog.New(slog.DiscardHandler)}
		if shared {
			j.servers = newServers(client)
		}
		if err := j.writeInfo(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		m, err := client.CoreV1().ConfigMaps(join.InfoNamespace).Get(t.Context(), join.InfoName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now, err := join.Decode([]byte(m.Data[join.InfoKey]))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(now.Servers, " ")
	}
	if got := told("192.0.2.1:6443", true); got != "192.0.2.1:6443" {
		t.Errorf("the first tells of %s", got)
	}
	if got := told("192.0.2.2:6443", true); got != "192.0.2.1:6443 192.0.2.2:6443" {
		t.Errorf("the second tells of %s", got)
	}
	if got := told("192.0.2.3:6443", false); got != "192.0.2.3:6443" {
		t.Errorf("one that can have no others tells of %s", got)
	}
}

func TestServersHaveNamesOfTheirOwn(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	now := time.Now()
	i := identities{client: client, now: func() time.Time { return now }}
	claim := func(key string) string {
		t.Helper()
		refusal, err := i.claimOwn(t.Context(), "n1", key)
		if err != nil {
			t.Fatal(err)
		}
		return refusal
	}
	if r := claim("first"); r != "" { // its Node is from an earlier version
		t.Errorf("the first is refused: %s", r)
	}
	if r := claim("first"); r != "" {
		t.Errorf("the first is refused after a restart: %s", r)
	}
	if r := claim("second"); !strings.Contains(r, "--node-name") || !strings.Contains(r, "delete node n1") {
		t.Errorf("another machine: %q", r)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if r := claim("second"); r == "" {
		t.Error("the name is free before the first has had the time to make its node")
	}
	now = now.Add(settling)
	if r := claim("second"); r != "" {
		t.Errorf("the node is deleted: %s", r)
	}
}
