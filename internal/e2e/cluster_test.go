//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/image"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

const configFile = `tls-san: [first.example]
node-external-ip: 203.0.113.5
node-label: [tier=test]
kube-scheduler-config: /etc/clusterd/scheduler.yaml
pod-manifest-url: http://127.0.0.1:18080/pod.yaml
resolv-conf: /etc/clusterd/resolv.conf
`

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: no-scoring-scheduler
  plugins:
    preScore: {disabled: [{name: '*'}]}
    score: {disabled: [{name: '*'}]}
`

// TestCluster takes one cluster from an empty data directory through everything a user does with it, side by side, and
// then through stops and crashes, one after another.
func TestCluster(t *testing.T) {
	c := newCluster(t, "main")
	put(t, c, "/etc/clusterd/config.yaml", []byte(configFile))
	put(t, c, "/etc/clusterd/scheduler.yaml", []byte(schedulerConfig))
	put(t, c, "/etc/clusterd/resolv.conf", []byte("nameserver "+lab.HubAddress+"\n"))
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	put(t, c, dirs.Images()+"/gz.tar.gz", image.Gzip(t, image.Bytes(t, variant(t, "clusterd.test/gz:1"))))
	put(t, c, dirs.Images()+"/zst.tar.zst", image.Zstd(t, image.Bytes(t, variant(t, "clusterd.test/zst:1"))))
	serveUpstreamDNS(t)
	servePodManifest(t, c.Node)
	notified := notifications(t, c.Node.Path("/tmp/notify.sock"))
	c.Env = []string{"NOTIFY_SOCKET=/tmp/notify.sock"}

	s := start(t, c)
	wantNotified(t, notified)
	s.runs(t, newPod("first", idle())) // without this nothing below can pass
	t.Run("Node", s.testNode)
	t.Run("Use", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"Services": s.testServices, "Egress": s.testEgress, "Kubectl": s.testKubectl, "Scheduler": s.testScheduler,
			"StaticPods": s.testStaticPods, "HostPort": s.testHostPort, "Probes": s.testProbes, "FailingProbes": s.testFailingProbes,
			"RuntimeClass": s.testRuntimeClass, "Images": s.testImages, "Registries": s.testRegistries, "NodeProxy": s.testNodeProxy,
			"Anonymous": s.testAnonymous, "ProxyMode": s.testProxyMode, "Certificates": s.testCertificates,
			"ResourceMetrics": s.testResourceMetrics,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("HostResolvers", s.testHostResolvers)
	t.Run("NetworkNamespaces", s.testNetworkNamespaces)
	t.Run("Overlay", s.testOverlay)
	t.Run("SecondInstance", s.testSecondInstance)
	t.Run("Restart", s.testRestart)
	t.Run("Renewal", s.testRenewal)
	t.Run("Kill", s.testKill)
	t.Run("KillAmongPods", s.testKillAmongPods)
}

// serveUpstreamDNS answers upstream.example from outside the node, as the host's resolver would.
func serveUpstreamDNS(t *testing.T) {
	t.Helper()
	conn, err := machines.Hub().ListenPacket("udp", lab.HubAddress+":53")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		switch {
		case !strings.EqualFold(q.Question[0].Name, "upstream.example."):
			a.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			a.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5},
				A:   net.IPv4(192, 0, 2, 7),
			}}
		}
		_ = w.WriteMsg(a)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
}

// servePodManifest offers a static pod at the URL in configFile.
func servePodManifest(t *testing.T, node *lab.Node) {
	t.Helper()
	serve(t, node.Network(), "127.0.0.1:18080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write([]byte(staticPod("from-url")))
	}))
}

// serve runs an HTTP server in a namespace until the end of the test.
func serve(t *testing.T, ns lab.Namespace, address string, h http.Handler) {
	t.Helper()
	l, err := ns.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// notifications collects what is sent to a socket in the manner of sd_notify.
func notifications(t *testing.T, path string) <-chan string {
	t.Helper()
	conn, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	messages := make(chan string, 100)
	go func() {
		for b := make([]byte, 4096); ; {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			messages <- string(b[:n])
		}
	}()
	return messages
}

func wantNotified(t *testing.T, messages <-chan string) {
	t.Helper()
	var seen []string
	for timeout := time.After(10 * time.Second); ; {
		select {
		case m := <-messages:
			if seen = append(seen, m); strings.Contains(m, "READY=1") {
				return
			}
		case <-timeout:
			t.Errorf("no READY=1 10 s after the node was Ready; messages: %q", seen)
			return
		}
	}
}

// testNode looks at the node object and at what the start printed.
func (s *suite) testNode(t *testing.T) {
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), s.Node.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Labels["tier"] != "test" {
		t.Errorf("the node has not the label of the configuration: %v", node.Labels)
	}
	eventually(t, 10*time.Second, func(ctx context.Context) string {
		n, err := s.client.CoreV1().Nodes().Get(ctx, s.Node.Name(), metav1.GetOptions{})
		if _, ok := n.Labels["node-role.kubernetes.io/control-plane"]; err != nil || !ok {
			return fmt.Sprintf("the node has no role: %v, %v", n.Labels, err)
		}
		return ""
	})
	if len(node.Spec.Taints) > 0 {
		t.Errorf("the node has taints: %v", node.Spec.Taints)
	}
	if v := node.Status.NodeInfo.KubeletVersion; !strings.HasPrefix(v, "v1.37.2+clusterd.") {
		t.Errorf("kubelet version %s, want v1.37.2+clusterd.N", v)
	}
	address := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: s.Node.Addr()}
	if a := node.Status.Addresses; len(a) == 0 || a[0] != address {
		t.Errorf("addresses %v, want first %v", a, address)
	}
	eventually(t, 30*time.Second, func(ctx context.Context) string {
		if _, err := s.client.CoordinationV1().Leases("kube-node-lease").Get(ctx, s.Node.Name(), metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	eventually(t, 10*time.Second, func(context.Context) string {
		if !strings.Contains(s.Log(), "kubectl") {
			return "the server's output does not end with how to use it:\n" + s.Tail(10)
		}
		return ""
	})
}
