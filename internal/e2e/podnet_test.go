//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/capture"
	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// podnetServices lead to a pod on each node, and to that on the joined one alone, with and without keeping the client's
// address.
const podnetServices = `apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {net: both}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: any}
spec: {type: NodePort, selector: {app: far}, ports: [{port: 80, targetPort: 8080, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: local}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {app: far}, ports: [{port: 80, targetPort: 8080, nodePort: 30082}]}
`

// TestPodNetwork has pods on two nodes talk to each other, on each way between nodes.
func TestPodNetwork(t *testing.T) {
	c := newCluster(t, "pa")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	s := start(t, c)
	j := &joined{suite: s, agent: newAgent(t, s, "pb", "--token", s.nodeToken(t))}
	j.startAgent(t)
	near, far := newPod("near", container("c", "tool", "serve")), j.on(newPod("far", container("c", "tool", "serve")))
	near.Spec.NodeName = s.Node.Name()
	near.Labels["net"], far.Labels["net"] = "both", "both"
	j.kubectlWith(t, podnetServices, "apply", "-f", "-")
	at := map[string]string{"near": j.runs(t, near).Status.PodIP, "far": j.runs(t, far).Status.PodIP}
	t.Run("vxlan", func(t *testing.T) { j.talk(t, at) })

	for _, backend := range []string{"host-gw", "wireguard-native"} {
		j.changeBackend(t, backend)
		t.Run(backend, func(t *testing.T) {
			c := j.watch(t)
			j.talk(t, at)
			wantBetween(t, backend, c.Stop())
		})
	}
	private(t, j.Node.Path(dirs.WireGuardKey()))
	j.changeBackend(t, "vxlan")
	t.Run("vxlan again", func(t *testing.T) { j.talk(t, at) })
	for _, n := range []*cluster.Cluster{j.Cluster, j.agent} {
		if out, err := n.Node.Output(t.Context(), "ip", "link", "show", "dev", "clusterd-wg"); err == nil {
			t.Errorf("the tunnel of WireGuard is still there: %s", out)
		}
	}
}

// changeBackend starts both nodes again after a crash, the joined one when it knows of the new backend.
func (j *joined) changeBackend(t *testing.T, backend string) {
	t.Helper()
	if err := j.Kill(); err != nil {
		t.Fatal(err)
	}
	j.Args = []string{"--flannel-backend=" + backend}
	j.start(t)
	eventually(t, startTimeout, func(context.Context) string {
		if kept, err := os.ReadFile(j.agent.Node.Path(dirs.Joined())); err != nil || !strings.Contains(string(kept), `"`+backend+`"`) {
			return fmt.Sprintf("the joined node has not learned of the new backend: %v", err)
		}
		return ""
	})
	if err := j.agent.Kill(); err != nil {
		t.Fatal(err)
	}
	j.startAgent(t)
}

// watch looks at the joined node's cable.
func (j *joined) watch(t *testing.T) (c *capture.Capture) {
	t.Helper()
	err := j.agent.Node.Network().Do(func() (err error) { c, err = capture.Start("eth0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantBetween looks at what went by a cable: the pods' own connections, to port 8080, can be seen with host-gw, and with
// WireGuard nothing but its packets instead.
func wantBetween(t *testing.T, backend string, frames []capture.Frame) {
	t.Helper()
	var clear, wrapped int
	for _, f := range frames {
		switch kind := f.Kind(); {
		case kind == "udp 51820 51820":
			wrapped++
		case strings.HasPrefix(kind, "tcp ") && strings.HasSuffix(kind, " 8080"):
			clear++
		}
	}
	if encrypted := backend == "wireguard-native"; encrypted != (clear == 0) || encrypted != (wrapped > 0) {
		t.Errorf("%s: %d frames to pods in the clear, %d of WireGuard", backend, clear, wrapped)
	}
}

// talk calls from pod to pod, and from outside by ports of both nodes. at are the pods' addresses.
func (j *joined) talk(t *testing.T, at map[string]string) {
	for from, to := range map[string]string{"near": "far", "far": "near"} {
		j.tries(t, from, func(saw string) bool { return saw == at[from] }, "tool", "get", "http://"+at[to]+":8080/remote")
		j.tries(t, from, contains("near", "far"), "tool", "get", "--count=30", "http://both/")
	}
	j.proxied(t, "/api/v1/namespaces/default/pods/far:8080/proxy/", "far")
	for _, node := range []string{j.Node.Addr(), j.agent.Node.Addr()} {
		eventually(t, podTimeout, func(ctx context.Context) string { return j.outside(ctx, "http://"+node+":30081/", "far") })
	}
	eventually(t, podTimeout, func(ctx context.Context) string {
		return j.outside(ctx, "http://"+j.agent.Node.Addr()+":30082/remote", lab.HubAddress)
	})
	if missing := j.outside(t.Context(), "http://"+j.Node.Addr()+":30082/", "far"); missing == "" {
		t.Error("a node without a pod answers for a Service that keeps the client's address")
	}
}

// outside says what is wrong with the answer that a client on the network gets.
func (j *joined) outside(ctx context.Context, url, want string) string {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: machines.Hub().DialContext, DisableKeepAlives: true}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := client.Do(q)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || strings.TrimSpace(string(body)) != want {
		return fmt.Sprintf("GET %s: %q, %v, want %q", url, body, err, want)
	}
	return ""
}
