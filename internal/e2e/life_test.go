//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// forgiving are sets whose pods may be moved soon after their node is lost.
var forgiving = forgivingSet("StatefulSet", "only", "serviceName: only") + "---\n" + forgivingSet("Deployment", "moving", "replicas: 1")

func forgivingSet(kind, name, field string) string {
	return strings.NewReplacer("KIND", kind, "NAME", name, "FIELD", field).Replace(`apiVersion: apps/v1
kind: KIND
metadata: {name: NAME}
spec:
  FIELD
  selector: {matchLabels: {set: NAME}}
  template:
    metadata: {labels: {set: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      containers: [{name: c, image: "clusterd.test/tools:1", imagePullPolicy: Never, command: [tool, serve]}]
`)
}

// TestNodeLife has a node that reaches its server by another address than the server knows, as behind a router, and takes both
// through what happens to such machines.
func TestNodeLife(t *testing.T) {
	c := newCluster(t, "la", "--kube-controller-manager-arg=node-monitor-grace-period=20s")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	s := start(t, c)
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "nsenter", "--net="+string(machines.Hub()), "nft", "delete", "table", "ip", "life").Run()
	})
	route(t, s.Node.Addr())
	a := newAgent(t, s, "lb", "--token", s.nodeToken(t), "--join", "https://"+lab.HubAddress+":6443")
	nft(t, a.Node.Network(), "add table inet router", "add chain inet router out { type filter hook output priority 0; }",
		"add rule inet router out ip daddr != { "+lab.HubAddress+", 127.0.0.0/8 } tcp dport 6443 drop")
	j := &joined{suite: s, agent: a}
	j.startAgent(t)
	near := newPod("near", container("c", "tool", "serve"))
	near.Spec.NodeName = s.Node.Name()
	j.runs(t, near)
	j.runs(t, j.on(newPod("far", container("c", "tool", "serve"))))
	t.Run("Router", j.testWorks)
	t.Run("ServerMoves", func(t *testing.T) { j.testMove(t, j.Cluster, "10.77.0.201") })
	t.Run("AgentMoves", func(t *testing.T) { j.testMove(t, j.agent, "10.77.0.202") })
	t.Run("CableOut", j.testCableOut)
	t.Run("DrainAndDelete", j.testDrainAndDelete)
}

// nft runs commands in a network namespace.
func nft(t *testing.T, ns lab.Namespace, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+string(ns), "nft", c).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", c, err, out)
		}
	}
}

// route leads the hub's port to a server, and nothing else.
func route(t *testing.T, server string) {
	t.Helper()
	hub := machines.Hub()
	if out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+string(hub), "sysctl", "-qw", "net.ipv4.ip_forward=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nft(t, hub, "add table ip life", "delete table ip life", "add table ip life",
		"add chain ip life pre { type nat hook prerouting priority dstnat; }", "add chain ip life post { type nat hook postrouting priority srcnat; }",
		"add rule ip life pre ip daddr "+lab.HubAddress+" tcp dport 6443 dnat to "+server+":6443", "add rule ip life post ct status dnat masquerade")
}

// testWorks uses everything that needs a way between the machines.
func (j *joined) testWorks(t *testing.T) {
	j.tries(t, "far", contains("far"), "hostname")
	for _, pod := range []string{"near", "far"} {
		other := map[string]string{"near": "far", "far": "near"}[pod]
		at := j.pod(t, other, isReady).Status.PodIP
		j.tries(t, pod, contains(other), "tool", "get", "http://"+at+":8080/")
	}
	j.tries(t, "near", contains("10.43.0.1"), "nslookup", "kubernetes.default.svc.cluster.local")
}

// testMove gives a machine another address.
func (j *joined) testMove(t *testing.T, m *cluster.Cluster, address string) {
	before := j.containers(t)
	if err := m.Node.Move(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if m == j.Cluster {
		route(t, address)
	}
	eventually(t, podTimeout, func(ctx context.Context) string { return j.isAt(ctx, m, address) })
	t.Logf("everything has followed %.1f s after the move", time.Since(began).Seconds())
	j.testWorks(t)
	if after := j.containers(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers were %v, are %v", before, after)
	}
	nodes, err := j.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 {
		t.Errorf("the nodes are %v, %v", nodes, err)
	}
	for _, c := range []*cluster.Cluster{j.Cluster, j.agent} {
		select {
		case <-c.Server().Done():
			t.Errorf("clusterd on %s has ended: %v", c.Node.Name(), c.Server().Err())
		default:
		}
	}
}

// isAt says what has not followed to a machine's new address.
func (j *joined) isAt(ctx context.Context, m *cluster.Cluster, address string) string {
	n, err := j.client.CoreV1().Nodes().Get(ctx, m.Node.Name(), metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if a := n.Status.Addresses; len(a) == 0 || a[0] != (corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address}) {
		return fmt.Sprintf("the Node's addresses are %v", a)
	}
	if at := n.Annotations["clusterd.io/network-address"]; at != address {
		return "the other nodes are told that it is at " + at
	}
	port := "10250"
	if m == j.Cluster {
		port = "6443"
		slices, err := j.client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil || len(slices.Items) != 1 || fmt.Sprint(slices.Items[0].Endpoints[0].Addresses) != "["+address+"]" {
			return fmt.Sprintf("the Service kubernetes leads to %v, %v", slices, err)
		}
		info, err := j.client.CoreV1().ConfigMaps("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil || !strings.Contains(fmt.Sprint(info.Items), address+":6443") {
			return fmt.Sprintf("the nodes are not told of the server's address: %v", err)
		}
	}
	cert, err := shown(ctx, m.Node, port)
	if err == nil {
		err = cert.VerifyHostname(address)
	}
	if err != nil {
		return err.Error()
	}
	if out, err := j.Clusterd(ctx, nil, "kubectl", "exec", "far", "--", "hostname"); err != nil {
		return fmt.Sprintf("exec: %v %s", err, out)
	}
	return ""
}

// testCableOut takes the agent's cable out until its pods are to move.
func (j *joined) testCableOut(t *testing.T) {
	for _, cordon := range []string{"cordon", "uncordon"} { // so that both are on the agent
		j.kubectl(t, cordon, j.Node.Name())
		if cordon == "cordon" {
			j.kubectlWith(t, forgiving, "apply", "-f", "-")
			j.kubectl(t, "rollout", "status", "statefulset/only", "--timeout=80s")
			j.kubectl(t, "rollout", "status", "deployment/moving", "--timeout=80s")
		}
	}
	before := j.set(t, "only")[0]
	running := j.processes(t)
	if err := j.agent.Node.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, startTimeout, func(ctx context.Context) string {
		for _, p := range j.set(t, "moving") {
			if p.Spec.NodeName == j.Node.Name() && isReady(&p) == "" {
				return ""
			}
		}
		return "the deployment has no pod elsewhere"
	})
	only := j.set(t, "only")
	if len(only) != 1 || only[0].UID != before.UID || only[0].DeletionTimestamp == nil {
		t.Errorf("the pods of the stateful set are %v", only)
	}
	if now := j.processes(t); now != running {
		t.Errorf("on the lost node %d pods ran and %d do", running, now)
	}
	if err := j.agent.Node.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, podTimeout, func(ctx context.Context) string {
		only := j.set(t, "only")
		switch {
		case len(only) > 1:
			t.Fatalf("there are two pods of the stateful set: %v", only)
		case len(only) == 0 || only[0].UID == before.UID || isReady(&only[0]) != "":
			return "the stateful set has no new pod"
		case !cluster.NodeReady(ctx, j.client, j.agent.Node.Name(), began):
			return "the node is not Ready"
		}
		return ""
	})
	t.Logf("the node was as it should be %.1f s after the cable was back", time.Since(began).Seconds())
	j.testWorks(t)
	j.kubectlWith(t, forgiving, "delete", "--wait=false", "-f", "-")
}

// set are the pods of a set.
func (j *joined) set(t *testing.T, name string) []corev1.Pod {
	t.Helper()
	list, err := j.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "set=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// processes counts the servers that pods run on the agent's machine.
func (j *joined) processes(t *testing.T) int {
	t.Helper()
	out, err := j.agent.Node.Output(t.Context(), "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '[t]ool serve' | wc -l")
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(out, &n); err != nil {
		t.Fatal(err, out)
	}
	return n
}

// testDrainAndDelete takes the agent out as an administrator would, and back in.
func (j *joined) testDrainAndDelete(t *testing.T) {
	name := j.agent.Node.Name()
	j.kubectl(t, "drain", name, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=80s")
	j.gone(t, "far")
	j.kubectl(t, "delete", "node", name)
	eventually(t, podTimeout, func(ctx context.Context) string {
		_, err := j.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "the node is still there"
		}
		return ""
	})
	select {
	case <-j.agent.Server().Done():
		t.Errorf("the agent has ended by itself: %v", j.agent.Server().Err())
	case <-time.After(3 * time.Second): // what follows a deleted node would have
	}
	if err := j.agent.Stop(stopTimeout); err != nil {
		t.Fatalf("stop: %v", err)
	}
	j.startAgent(t)
	j.runs(t, j.on(newPod("far", container("c", "tool", "serve"))))
	j.testWorks(t)
}
