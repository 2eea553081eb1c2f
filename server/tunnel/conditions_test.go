package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/testutil"

	"github.com/clusterd/clusterd/internal/tunnel"
)

// joined is one node that is elsewhere, as the API has it.
type joined struct {
	client *fake.Clientset
	came   func(string)
}

func (j *joined) Follow(f func(string)) { j.came = f }

func (j *joined) Joined() []*corev1.Node {
	n, err := j.client.CoreV1().Nodes().Get(context.Background(), "one", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return []*corev1.Node{n}
}

// state is the condition, and how often it was written.
func (j *joined) state() string {
	writes := 0
	for _, a := range j.client.Actions() {
		if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
			writes++
		}
	}
	for _, n := range j.Joined() {
		if c := conditionOf(n); c != nil {
			return fmt.Sprint(c.Status, writes)
		}
	}
	return fmt.Sprint(writes)
}

// stands in for a tunnel: nobody looks into it here.
func stub() *tunnel.Server { return &tunnel.Server{} }

func TestConditionFollowsTheTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &joined{client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})}
		tunnels := New(nil, slog.New(slog.DiscardHandler))
		c := NewConditions(tunnels, j, j.client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx, func() {}) }()
		want := func(state string, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := j.state(); got != state {
				t.Errorf("the condition is %s, want %s", got, state)
			}
		}
		set := func(s *tunnel.Server) {
			tunnels.mu.Lock()
			tunnels.open["one"] = s
			tunnels.mu.Unlock()
			tunnels.changed("one")
		}
		j.came("one")
		want("0", grace-time.Second) // it may be about to make its tunnel
		want("True1", 2*time.Second)
		set(stub())
		want("False2", time.Second)
		j.came("one") // nothing has changed
		want("False2", 2*grace)
		set(nil)
		want("False2", grace-time.Second)
		set(stub()) // it has made another one in time
		want("False2", 2*grace)
		set(nil)
		want("True3", 2*grace)
		if err := j.client.CoreV1().Nodes().Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		set(stub())
		want("3", grace)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestMetric(t *testing.T) {
	j := &joined{client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})}
	tunnels := New(nil, slog.New(slog.DiscardHandler))
	for _, up := range []int{0, 1} {
		if up == 1 {
			tunnels.open["one"] = stub()
		}
		want := fmt.Sprintf(`
# HELP clusterd_node_tunnel_up [ALPHA] 1 while the joined node holds a tunnel to this server, else 0.
# TYPE clusterd_node_tunnel_up gauge
clusterd_node_tunnel_up{node="one"} %d
`, up)
		if err := testutil.CustomCollectAndCompare(&collector{tunnels: tunnels, nodes: j}, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
}

// TestTunnelsTell has a real connection come and go.
func TestTunnelsTell(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s, err := tunnel.NewServer(near)
	if err != nil {
		t.Fatal(err)
	}
	tunnels := New(nil, slog.New(slog.DiscardHandler))
	told := make(chan string, 2)
	tunnels.changed = func(node string) { told <- fmt.Sprint(node, " ", tunnels.has(node)) }
	go tunnels.hold("one", s)
	if got := <-told; got != "one true" {
		t.Errorf("told %q", got)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-told; got != "one false" {
		t.Errorf("told %q", got)
	}
}
