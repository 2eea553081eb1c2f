package nodewatch_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/nodewatch"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

func api(t *testing.T) (*kubeapi.Server, clientset.Interface) {
	t.Helper()
	s := kubeapi.New(t)
	s.Define("", "v1", "Node", "nodes", false)
	c, err := clientset.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func put(s *kubeapi.Server, name string, change func(*v1.Node)) {
	n := v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	change(&n)
	s.Put("/api/v1/nodes/"+name, n)
}

func ranges(cidrs ...string) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.PodCIDRs = cidrs }
}

func TestPodCIDRs(t *testing.T) {
	s, c := api(t)
	put(s, "other", ranges("10.42.9.0/24"))
	put(s, "one", ranges())
	type result struct {
		prefixes []netip.Prefix
		err      error
	}
	got := make(chan result, 1)
	go func() {
		p, err := nodewatch.PodCIDRs(t.Context(), c, "one")
		got <- result{p, err}
	}()
	put(s, "other", ranges("10.42.8.0/24"))
	put(s, "one", ranges("10.42.1.0/24", "fd42:0:0:1::/64"))
	select {
	case r := <-got:
		want := []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("fd42:0:0:1::/64")}
		if r.err != nil || !slices.Equal(r.prefixes, want) {
			t.Errorf("got %v, %v", r.prefixes, r.err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the node's ranges are not seen")
	}
	put(s, "one", ranges("10.42.1.0"))
	if _, err := nodewatch.PodCIDRs(t.Context(), c, "one"); err == nil || !strings.Contains(err.Error(), "node one") {
		t.Errorf("a range that is none gives %v", err)
	}
}

func TestUntilEndsWithItsContext(t *testing.T) {
	s, c := api(t)
	put(s, "one", ranges())
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		_, err := nodewatch.Until(ctx, c, "one", func(*v1.Node) bool {
			select {
			case seen <- struct{}{}:
			default:
			}
			return false
		})
		ended <- err
	}()
	<-seen
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "node one") {
		t.Errorf("got %v, want an error that names the node", err)
	}
}

// TestUntilPassesOverADeletedNode: the last state of a node that is gone counts for nothing.
func TestUntilPassesOverADeletedNode(t *testing.T) {
	s, c := api(t)
	put(s, "one", ranges())
	looked := make(chan struct{}, 10)
	got := make(chan *v1.Node, 1)
	go func() {
		n, err := nodewatch.Until(t.Context(), c, "one", func(n *v1.Node) bool {
			looked <- struct{}{}
			return n.Labels["wanted"] == "yes"
		})
		if err == nil {
			got <- n
		}
	}()
	<-looked
	s.Delete("/api/v1/nodes/one")
	put(s, "one", func(n *v1.Node) { n.Labels = map[string]string{"wanted": "yes"} })
	select {
	case n := <-got:
		if n.Name != "one" || n.Labels["wanted"] != "yes" {
			t.Errorf("got %v", n)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the new node is not seen")
	}
}

func TestReadySince(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d).Truncate(time.Second)) }
	for name, row := range map[string]struct {
		conditions []v1.NodeCondition
		want       bool
	}{
		"no condition":         {nil, false},
		"another condition":    {[]v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue, LastHeartbeatTime: at(0)}}, false},
		"not ready":            {[]v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, LastHeartbeatTime: at(time.Second)}}, false},
		"ready in another run": {[]v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: at(-2 * time.Second)}}, false},
		"ready in that second": {[]v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: at(0)}}, true},
		"ready later":          {[]v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: at(time.Minute)}}, true},
	} {
		if got := nodewatch.ReadySince(start)(&v1.Node{Status: v1.NodeStatus{Conditions: row.conditions}}); got != row.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestNodes keeps what it is told to, of all nodes or of one, and is silent about heartbeats.
func TestNodes(t *testing.T) {
	s, c := api(t)
	put(s, "one", ranges("10.42.1.0/24"))
	put(s, "two", ranges("10.42.2.0/24"))
	for only, want := range map[string][]string{"": {"one", "two"}, "two": {"two"}} {
		changed := make(chan struct{}, 100)
		nodes := nodewatch.NewNodes(c, only, func(n *v1.Node) *v1.Node {
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion}, Spec: n.Spec}
		}, func() { changed <- struct{}{} })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); nodes.Run(ctx) }()
		<-nodes.Synced()
		var names []string
		for _, n := range nodes.List() {
			names = append(names, n.Name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("only %q: %v, want %v", only, names, want)
		}
		for range want {
			<-changed
		}
		for _, image := range []string{"a", "b"} { // a heartbeat, as far as this Nodes is concerned
			put(s, "two", func(n *v1.Node) { ranges("10.42.2.0/24")(n); n.Labels = map[string]string{"image": image} })
		}
		put(s, "two", ranges("10.42.9.0/24"))
		<-changed
		if i := slices.IndexFunc(nodes.List(), func(n *v1.Node) bool { return n.Name == "two" && n.Spec.PodCIDRs[0] == "10.42.9.0/24" }); i < 0 {
			t.Errorf("only %q: told before the change that matters: %v", only, nodes.List())
		}
		cancel()
		<-ended
		put(s, "two", ranges("10.42.2.0/24"))
	}
}
