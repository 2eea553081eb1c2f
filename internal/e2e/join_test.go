//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// joined is a cluster of a server and a node that has joined it.
type joined struct {
	*suite
	agent *cluster.Cluster
}

// TestJoin takes a second machine through its life as a node.
func TestJoin(t *testing.T) {
	c := newCluster(t, "js")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	s := start(t, c)
	j := &joined{suite: s, agent: newAgent(t, s, "ja", "--token", s.nodeToken(t))}
	j.startAgent(t)
	j.create(t, j.on(newPod("far", container("c", "sh", "-c", "echo hello from afar; mkdir -p /www; echo web > /www/index.html; httpd -p 8080 -h /www; trap 'exit 0' TERM; while :; do sleep 1 & wait; done"))))
	t.Run("Pod", j.testPod)
	t.Run("Tunnel", j.testTunnel)
	t.Run("Cable", j.testCable)
	t.Run("Tokens", j.testTokens)
	t.Run("Names", j.testNames)
	t.Run("Restart", j.testAgentRestart)
	t.Run("Kill", j.testAgentKill)
	t.Run("ServerRestart", j.testServerRestart)
	t.Run("Secrets", j.testSecrets)
	t.Run("Rejoin", j.testRejoin)
	t.Run("Older", j.testOlder)
}

// nodeToken is the server's own.
func (s *suite) nodeToken(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.Node.Path(dirs.NodeToken()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// url is where other machines reach the server.
func (s *suite) url() string { return "https://" + s.Node.Addr() + ":6443" }

// newAgent makes a machine that will join s.
func newAgent(t *testing.T, s *suite, name string, args ...string) *cluster.Cluster {
	t.Helper()
	a := newCluster(t, name, append([]string{"--join", s.url()}, args...)...)
	a.Role = "agent"
	put(t, a, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	return a
}

// startAgent starts the node and waits until the cluster has it Ready.
func (j *joined) startAgent(t *testing.T) {
	t.Helper()
	if err := j.agent.Start(); err != nil {
		t.Fatal(err)
	}
	j.agentReady(t)
}

func (j *joined) agentReady(t *testing.T) {
	t.Helper()
	err := j.agent.Await(within(t, startTimeout), "the node to be Ready", func(ctx context.Context) bool {
		return cluster.NodeReady(ctx, j.client, j.agent.Node.Name(), j.agent.Began())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// on places a pod on the joined node.
func (j *joined) on(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeName = j.agent.Node.Name()
	return pod
}

// testPod reaches the pod on the joined node as users do.
func (j *joined) testPod(t *testing.T) {
	j.pod(t, "far", isReady)
	if got := j.exec(t, "far", "hostname"); got != "far" {
		t.Errorf("hostname in the pod is %q", got)
	}
	eventually(t, podTimeout, func(context.Context) string {
		if out := j.kubectl(t, "logs", "far"); !strings.Contains(out, "hello from afar") {
			return fmt.Sprintf("the pod's log is %q", out)
		}
		return ""
	})
	j.tries(t, "far", contains("10.43.0.1"), "nslookup", "kubernetes.default.svc.cluster.local")
	nodes := j.kubectl(t, "get", "nodes", "-o", "wide")
	for _, n := range []*cluster.Cluster{j.Cluster, j.agent} {
		wants(t, nodes, n.Node.Name(), n.Node.Addr())
	}
	stats := j.kubectl(t, "get", "--raw", "/api/v1/nodes/"+j.agent.Node.Name()+"/proxy/stats/summary")
	wants(t, stats, `"nodeName": "`+j.agent.Node.Name())
}

// testTunnel has the node refuse every connection from outside, as behind a router, for the rest of the test.
func (j *joined) testTunnel(t *testing.T) {
	for _, rule := range []string{
		"add table inet behind-router",
		"add chain inet behind-router in { type filter hook input priority 0; }",
		"add rule inet behind-router in iifname eth0 ct state new drop",
	} {
		if _, err := j.agent.Node.Output(t.Context(), append([]string{"nft"}, strings.Fields(rule)...)...); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.exec(t, "far", "hostname"); got != "far" {
		t.Errorf("hostname in the pod is %q", got)
	}
	wants(t, j.kubectl(t, "logs", "far"), "hello from afar")
	wants(t, j.kubectl(t, "get", "--raw", "/api/v1/nodes/"+j.agent.Node.Name()+"/proxy/healthz"), "ok")
	wants(t, j.kubectl(t, "get", "--raw", "/api/v1/namespaces/default/pods/far:8080/proxy/"), "web")
	j.tops(t, "node", j.agent.Node.Name())
	j.tops(t, "pod", "far")
}

// testCable takes the node's cable out, for longer than a connection lives without a sign of life.
func (j *joined) testCable(t *testing.T) {
	j.tunnel(t, corev1.ConditionFalse)
	if err := j.agent.Node.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.tunnel(t, corev1.ConditionTrue)
	if err := j.agent.Node.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	j.tries(t, "far", contains("far"), "hostname")
	t.Logf("exec worked %.1f s after the cable was back", time.Since(began).Seconds())
	j.tunnel(t, corev1.ConditionFalse)
}

// tunnel waits until the Node and the metrics say that the node has no tunnel, or that it has one.
func (j *joined) tunnel(t *testing.T, unavailable corev1.ConditionStatus) {
	t.Helper()
	name := j.agent.Node.Name()
	metric := fmt.Sprintf("clusterd_node_tunnel_up{node=%q} %d", name, map[corev1.ConditionStatus]int{corev1.ConditionTrue: 0, corev1.ConditionFalse: 1}[unavailable])
	eventually(t, podTimeout, func(ctx context.Context) string {
		n, err := j.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "TunnelUnavailable" && c.Status == unavailable {
				return ""
			}
		}
		return fmt.Sprintf("TunnelUnavailable is not %s: %v", unavailable, n.Status.Conditions)
	})
	all := j.kubectl(t, "get", "--raw", "/metrics")
	if !strings.Contains(all, metric) || strings.Contains(all, fmt.Sprintf("clusterd_node_tunnel_up{node=%q}", j.Node.Name())) {
		t.Errorf("the metrics lack %s, or have one of the server's node", metric)
	}
}

// testTokens joins, or tries to, with tokens of all kinds.
func (j *joined) testTokens(t *testing.T) {
	other := newAgent(t, j.suite, "jb")
	hash, _, _ := strings.Cut(j.nodeToken(t), "::")
	made := func(args ...string) string {
		out, err := j.Clusterd(within(t, podTimeout), nil, append([]string{"token", "create"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	try := func(token string) string {
		t.Helper()
		return refused(t, other, 1, nil, "--join", j.url(), "--token", token)
	}
	expired := made("--ttl", "1s")
	deleted := made("--description", "soon gone")
	list, err := j.Clusterd(within(t, podTimeout), nil, "token", "list")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, list, "soon gone", "the server's own token")
	if _, err := j.Clusterd(within(t, podTimeout), nil, "token", "delete", deleted); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // its time is over then
	wants(t, try(expired), "has expired at", "clusterd token create")
	wants(t, try(deleted), "not known here", "clusterd token create")
	wants(t, try(made()[:len(hash)+2+6]+".aaaaaaaaaaaaaaaa"), "mistyped")
	wants(t, try("K10"+strings.Repeat("0", 64)+"::abcdef.0123456789abcdef"), "is not the one that the token is for")
	wants(t, refused(t, other, 2, nil, "--join", j.url(), "--token", "sesame"), "node-token")
	wants(t, refused(t, other, 1, nil), "--join", "--token")
	before := j.nodeToken(t)
	if _, err := j.Clusterd(within(t, podTimeout), nil, "token", "rotate"); err != nil {
		t.Fatal(err)
	}
	if j.nodeToken(t) == before {
		t.Error("the rotated token is the one before")
	}
	wants(t, try(before), "not known here")
	for _, secret := range []string{before, expired} {
		if _, s, _ := strings.Cut(secret, "::"); strings.Contains(j.Log()+other.Log()+j.agent.Log(), s[7:]) {
			t.Error("a token was logged")
		}
	}
}

// testNames has another machine try to take the joined node's name.
func (j *joined) testNames(t *testing.T) {
	clone := newAgent(t, j.suite, "jc")
	name := j.agent.Node.Name()
	wants(t, refused(t, clone, 1, nil, "--join", j.url(), "--token", j.nodeToken(t), "--node-name", name),
		"another machine has the node name "+name, "--node-name", "--replace "+name)
	wants(t, refused(t, clone, 1, nil, "--join", j.url(), "--token", j.nodeToken(t), "--node-name", j.Node.Name()), "another machine has the node name")
	j.pod(t, "far", isReady)
	j.exec(t, "far", "true")
}

// testAgentRestart stops the node and starts it without a token, with its pods running all the time.
func (j *joined) testAgentRestart(t *testing.T) {
	before := j.containers(t)
	if err := j.agent.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	j.rename(t, j.agent, "Other_Name")
	wants(t, refused(t, j.agent, 1, nil, "--node-name", "another"), "is the node "+j.agent.Node.Name(), "--token", "--node-name")
	j.agent.Args = nil
	j.startAgent(t)
	j.tries(t, "far", contains("far"), "hostname")
	if after := j.containers(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers were %v, are %v", before, after)
	}
}

// rename gives a machine another host name, which is none that a node could have.
func (j *joined) rename(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	if _, err := c.Node.Output(t.Context(), "sh", "-c", "echo "+name+" >/proc/sys/kernel/hostname"); err != nil {
		t.Fatal(err)
	}
}

// testAgentKill ends the node's process as a crash would, and empties a file as a power cut may.
func (j *joined) testAgentKill(t *testing.T) {
	before := j.containers(t)
	if err := j.agent.Kill(); err != nil {
		t.Fatal(err)
	}
	j.startAgent(t)
	j.tries(t, "far", contains("far"), "hostname")
	if after := j.containers(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers were %v, are %v", before, after)
	}
}

// testServerRestart starts the server again while the node works, with another host name and an emptied record of the old one.
func (j *joined) testServerRestart(t *testing.T) {
	if err := j.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	j.rename(t, j.Cluster, "Other_Name")
	put(t, j.Cluster, dirs.NodeName(), nil)
	since := time.Now()
	j.start(t)
	if nodes, err := j.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 2 {
		t.Errorf("the nodes are %v, %v", nodes, err)
	}
	eventually(t, startTimeout, func(ctx context.Context) string {
		lease, err := j.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, j.agent.Node.Name(), metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime.Time.Before(since) {
			return fmt.Sprintf("the joined node has not come back: %v", err)
		}
		return ""
	})
	j.runs(t, j.on(newPod("later", idle())))
	j.exec(t, "later", "true")
}

// testSecrets looks at the permissions of what only root may read.
func (j *joined) testSecrets(t *testing.T) {
	for _, name := range []string{"node.key", "serving-kubelet.key", "client-kube-proxy.key", "client-coredns.key"} {
		private(t, j.agent.Node.Path(dirs.AgentTLS()+"/"+name))
	}
	private(t, j.Node.Path(dirs.NodeToken()))
}

func private(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Error(err)
	} else if st.Mode().Perm() != 0o600 {
		t.Errorf("%s has the mode %o", path, st.Mode().Perm())
	}
}

// testRejoin wipes the machine: it takes its old place when its Node was deleted, or with a token for that.
func (j *joined) testRejoin(t *testing.T) {
	name := j.agent.Node.Name()
	j.wipe(t)
	wants(t, refused(t, j.agent, 1, nil, "--join", j.url(), "--token", j.nodeToken(t)), "another machine has the node name")
	token, err := j.Clusterd(within(t, podTimeout), nil, "token", "create", "--replace", name)
	if err != nil {
		t.Fatal(err)
	}
	j.agent.Args = []string{"--join", j.url(), "--token", strings.TrimSpace(token)}
	j.startAgent(t)
	j.runs(t, j.on(newPod("again", idle())))
	j.exec(t, "again", "true")

	j.wipe(t)
	if err := j.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	j.agent.Args = []string{"--join", j.url(), "--token", j.nodeToken(t)}
	j.startAgent(t)
}

// testOlder starts the node with an executable that is one minor version behind the server, as one is that waits for its
// upgrade.
func (j *joined) testOlder(t *testing.T) {
	if err := j.agent.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	j.agent.Binary = older(t)
	j.startAgent(t)
	wants(t, j.kubectl(t, "get", "node", j.agent.Node.Name()), " Ready ", "v1.36.")
	j.runs(t, j.on(newPod("on-older", idle())))
	j.exec(t, "on-older", "true")
}

// older makes an executable that says of itself, to users and to the API server, that it is of the minor version before.
func older(t *testing.T) string {
	t.Helper()
	executable, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	const now, before = "v1.37.", "v1.36."
	stamp := regexp.MustCompile(regexp.QuoteMeta(now) + `\d+\+clusterd`)
	if !stamp.Match(executable) {
		t.Fatalf("%s has no version that begins with %s", binary, now)
	}
	old := stamp.ReplaceAllFunc(executable, func(v []byte) []byte { return append([]byte(before), v[len(now):]...) })
	dir, err := os.MkdirTemp("/var/tmp", "clusterd-older-") // a lab node has a /tmp of its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "clusterd")
	if err := os.WriteFile(path, old, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// wipe replaces the agent's machine with an empty one of the same name.
func (j *joined) wipe(t *testing.T) {
	t.Helper()
	if err := j.agent.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	node, err := machines.Up(t.Context(), j.agent.Node.Name())
	if err != nil {
		t.Fatal(err)
	}
	j.agent.Node = node
	put(t, j.agent, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
}
