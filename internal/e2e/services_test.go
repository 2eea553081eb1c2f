//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// web is applied with the real kubectl, as a user would.
const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: clusterd.test/tools:1
        command: [tool, serve]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: upstream.example}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: clusterd.test/tools:1, command: [sleep, infinity]}]
`

// testServices leaves its Deployment and its client pod for the tests of restarts.
func (s *suite) testServices(t *testing.T) {
	s.kubectlWith(t, web, "apply", "-f", "-")
	s.kubectl(t, "rollout", "status", "deployment/web", "--timeout=90s")
	s.pod(t, "client", isReady)
	pods, err := s.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("pods of the Deployment: %d, %v", len(pods.Items), err)
	}
	names := []string{pods.Items[0].Name, pods.Items[1].Name}
	service, err := s.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := service.Spec.ClusterIP

	s.tries(t, "client", contains(names...), "tool", "get", "--count=30", "http://web/")
	s.tries(t, "client", contains(names...), "tool", "get", "--count=30", "http://web.default.svc.cluster.local:80/")
	// A pod reaches itself through its Service.
	s.tries(t, names[0], contains(names...), "tool", "get", "--count=30", "http://"+ip+"/")
	s.answers(t, "http://"+s.Node.Addr()+":30080/", "web-")
	s.proxied(t, "/api/v1/namespaces/default/services/web:http/proxy/", "web-")
	s.proxied(t, "/api/v1/namespaces/default/pods/"+names[0]+":8080/proxy/", names[0])

	podIPs := []string{pods.Items[0].Status.PodIP, pods.Items[1].Status.PodIP}
	podName := strings.ReplaceAll(podIPs[0], ".", "-")
	for _, row := range []struct {
		kind, name string
		want       []string
	}{
		{"A", "web", []string{ip}},
		{"A", "web.default.svc.cluster.local.", []string{ip}},
		{"A", "headless", podIPs},
		{"A", "kubernetes.default", []string{"10.43.0.1"}},
		{"A", podName + ".default.pod.cluster.local.", podIPs[:1]},
		{"A", "upstream.example", []string{"192.0.2.7"}},
		{"CNAME", "external.default.svc.cluster.local.", []string{"upstream.example."}},
		{"SRV", "_http._tcp.web.default.svc.cluster.local.", []string{"80 web.default.svc.cluster.local."}},
		{"SRV", "_http._tcp.headless.default.svc.cluster.local.", []string{"8080 " + podName + ".headless.default.svc.cluster.local."}},
		{"PTR", ip, []string{"web.default.svc.cluster.local."}},
	} {
		s.tries(t, "client", contains(row.want...), "tool", "lookup", "--type="+row.kind, row.name)
	}
	if out, err := s.Clusterd(t.Context(), nil, "kubectl", "exec", "client", "--", "tool", "lookup", "nobody.default.svc.cluster.local."); err == nil {
		t.Errorf("a Service that is not there resolves to %s", out)
	}
}

// proxied waits until the API server hands on what a pod, Service or node says.
func (s *suite) proxied(t *testing.T, path, word string) {
	t.Helper()
	eventually(t, podTimeout, func(ctx context.Context) string {
		body, err := s.client.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil && strings.Contains(string(body), word) {
			return ""
		}
		return fmt.Sprintf("GET %s: %v; %.300q has no %q", path, err, body, word)
	})
}

// testEgress talks to a server outside, which knows the node but has no way back to the pod's own address.
func (s *suite) testEgress(t *testing.T) {
	serve(t, machines.Hub(), lab.HubAddress+":18070", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RemoteAddr)
	}))
	s.runs(t, newPod("egress", idle()))
	s.tries(t, "egress", contains(s.Node.Addr()+":"), "tool", "get", "http://"+lab.HubAddress+":18070/")
}

// testHostResolvers changes the host's resolvers: a pod that uses them gets those that there are when it starts.
func (s *suite) testHostResolvers(t *testing.T) {
	pod := func(name, want string) {
		p := newPod(name, idle())
		p.Spec.DNSPolicy = corev1.DNSDefault
		s.runs(t, p)
		if got := s.exec(t, name, "cat", "/etc/resolv.conf"); got != want {
			t.Errorf("the pod %s has the resolvers %q, want %q", name, got, want)
		}
	}
	before := "nameserver " + lab.HubAddress
	pod("resolvers-before", before)
	const changed = "search changed.example\nnameserver 192.0.2.53"
	put(t, s.Cluster, "/etc/clusterd/resolv.conf", []byte(changed+"\nnameserver 127.0.0.53\n"))
	defer put(t, s.Cluster, "/etc/clusterd/resolv.conf", []byte(before+"\n"))
	eventually(t, 10*time.Second, func(context.Context) string {
		if b, err := os.ReadFile(s.Node.Path(dirs.ResolvConf())); err != nil || strings.TrimSpace(string(b)) != changed {
			return fmt.Sprintf("the change is not noticed: %q, %v", b, err)
		}
		return ""
	})
	pod("resolvers-after", changed)
}
