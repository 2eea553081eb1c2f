package proxy

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// fed is a client that has been given the kubeconfig of kube-proxy for an API, with the secret or another one.
func fed(t *testing.T, s *kubeapi.Server, secret func(string) string) *kubernetes.Clientset {
	t.Helper()
	f, err := newFeed(s.Config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, ca, err := newCertificate()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.serve(ctx, l, c) }()
	t.Cleanup(func() { cancel(); <-ended })
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig("https://"+l.Addr().String(), ca, secret(f.secret)))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func itself(secret string) string { return secret }

func nodeAt(address string, labels map[string]string) v1.Node {
	return v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: labels},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}},
	}
}

func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		return e
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return watch.Event{}
	}
}

// TestNodeStandsStill: kube-proxy would end the process when it saw the node's new address, or that it is gone.
func TestNodeStandsStill(t *testing.T) {
	s := api(t, "10.43.0.8")
	client := fed(t, s, itself)
	nodes := client.CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Status.Addresses[0].Address != "192.0.2.5" {
		t.Fatalf("the nodes are %v, %v", list, err)
	}
	w, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.Put("/api/v1/nodes/one", nodeAt("192.0.2.6", map[string]string{"zone": "a"}))
	e := next(t, w)
	if n, ok := e.Object.(*v1.Node); !ok || e.Type != watch.Modified || n.Labels["zone"] != "a" || n.Status.Addresses[0].Address != "192.0.2.5" {
		t.Errorf("the node has become %+v", e)
	}
	s.Delete("/api/v1/nodes/one")
	s.Put("/api/v1/nodes/one", nodeAt("192.0.2.7", map[string]string{"zone": "b"}))
	e = next(t, w)
	if n, ok := e.Object.(*v1.Node); !ok || e.Type == watch.Deleted || n.Labels["zone"] != "b" || n.Status.Addresses[0].Address != "192.0.2.5" {
		t.Errorf("the node that came back is %+v", e)
	}
	s.Delete("/api/v1/nodes/one")
	list, err = nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Labels["zone"] != "b" {
		t.Errorf("after the node was deleted the nodes are %v, %v", list, err)
	}
	sends := true
	if _, err := nodes.Watch(t.Context(), metav1.ListOptions{SendInitialEvents: &sends}); !apierrors.IsInvalid(err) {
		t.Errorf("a watch that begins with all nodes is %v, want one that makes clients list", err)
	}
}

func TestFeedIsTheAPI(t *testing.T) {
	s := api(t, "10.43.0.9")
	client := fed(t, s, itself)
	services, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(services.Items) != 1 || services.Items[0].Spec.ClusterIP != "10.43.0.9" {
		t.Errorf("the services are %v, %v", services, err)
	}
	w, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: services.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.Delete("/api/v1/namespaces/default/services/web")
	if e := next(t, w); e.Type != watch.Deleted {
		t.Errorf("the event is %v", e)
	}
}

func TestFeedIsForOne(t *testing.T) {
	client := fed(t, api(t, "10.43.0.10"), func(string) string { return "guess" })
	if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the error is %v", err)
	}
}
