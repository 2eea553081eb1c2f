//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// testNodeProxy reads the kubelet by way of the API server.
func (s *suite) testNodeProxy(t *testing.T) {
	base := "/api/v1/nodes/" + s.Node.Name() + "/proxy/"
	for _, row := range []struct{ path, word string }{
		{"pods", `"kind":"PodList"`},
		{"stats/summary", `"nodeName": "` + s.Node.Name() + `"`},
		{"metrics", "kubelet_running_pods"},
		{"metrics/cadvisor", "container_memory_working_set_bytes"},
		{"healthz", "ok"},
		{"logs/", "clusterd.log"},
	} {
		t.Run(strings.Trim(strings.ReplaceAll(row.path, "/", "-"), "-"), func(t *testing.T) { s.proxied(t, base+row.path, row.word) })
	}
	s.proxied(t, "/metrics", "clusterd_datastore_commits_total ")
	if code := s.status(t, "https://"+s.Node.Addr()+":10250/pods"); code != http.StatusUnauthorized {
		t.Errorf("the kubelet answers a stranger with %d, want 401", code)
	}
}

// insecure connects inside the node and believes every server.
func (s *suite) insecure() *http.Transport {
	return &http.Transport{
		DialContext:       s.Node.Network().DialContext,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
}

// testAnonymous asks without credentials for what anybody may see, and for everything else.
func (s *suite) testAnonymous(t *testing.T) {
	for path, want := range map[string]int{
		"/healthz": 200, "/livez": 200, "/readyz": 200,
		"/": 401, "/api": 401, "/apis": 401, "/version": 401, "/metrics": 401, "/openapi/v2": 401,
		"/api/v1/namespaces/kube-system/secrets": 401, "/debug/pprof/": 401,
	} {
		if got := s.status(t, "https://"+s.Node.Addr()+":6443"+path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
}

func (s *suite) testProxyMode(t *testing.T) {
	status, mode, err := s.get(t.Context(), "http://127.0.0.1:10249/proxyMode")
	if err != nil || status != http.StatusOK || mode != "nftables" && mode != "iptables" {
		t.Errorf("proxyMode: %d %q, %v", status, mode, err)
	}
}

// serving returns the certificate that a port of the node shows.
func (s *suite) serving(t *testing.T, port string) *x509.Certificate {
	t.Helper()
	c, err := shown(t.Context(), s.Node, port)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shown is the certificate that a port of a node shows.
func shown(ctx context.Context, node *lab.Node, port string) (*x509.Certificate, error) {
	conn, err := node.Network().DialContext(ctx, "tcp", node.Addr()+":"+port)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// testCertificates looks at what the API server and the kubelet show, and at who may read the kubeconfig.
func (s *suite) testCertificates(t *testing.T) {
	api := s.serving(t, "6443")
	for _, name := range []string{
		"first.example", s.Node.Name(), s.Node.Addr(), "127.0.0.1", "localhost", "10.43.0.1", "kubernetes",
		"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	} {
		if err := api.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	for port, cert := range map[string]*x509.Certificate{"6443": api, "10250": s.serving(t, "10250")} {
		// The clock may have moved on a little since the certificate was made.
		if age := s.Began().Sub(cert.NotBefore); age < 50*time.Minute || age > 2*time.Hour {
			t.Errorf("port %s: valid from %s before the start, want an hour", port, age)
		}
		if left := time.Until(cert.NotAfter); left < 360*24*time.Hour || left > 370*24*time.Hour {
			t.Errorf("port %s: valid for %s, want a year", port, left)
		}
	}
	out, err := s.Node.Output(t.Context(), "stat", "-c", "%a", datadir.Kubeconfig, dirs.DB(), dirs.ServerTLS())
	if err != nil || !slices.Equal(strings.Fields(out), []string{"600", "600", "700"}) {
		t.Errorf("modes of the kubeconfig, the database and the keys' directory: %q, %v; want 600 600 700", out, err)
	}
	s.kubeletUser(t)
}

// kubeletUser uses the API server's certificate for kubelets as somebody would who has got hold of it: it is good for
// nodes only.
func (s *suite) kubeletUser(t *testing.T) {
	t.Helper()
	config, err := s.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData = nil, nil
	config.CertFile, config.KeyFile = pki.Dir(s.Node.Path(dirs.ServerTLS())).Path("client-kube-apiserver")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), s.Node.Name(), metav1.GetOptions{}); err != nil {
		t.Errorf("the kubelets' user may not read its nodes: %v", err)
	}
	if _, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the kubelets' user lists secrets: %v", err)
	}
}

// testNetworkNamespaces plays somebody who makes the machine's first network namespace while pods run: that must not
// strand a sandbox.
func (s *suite) testNetworkNamespaces(t *testing.T) {
	s.runs(t, newPod("before", idle()))
	if out, err := s.Node.Output(t.Context(), "ip", "netns", "add", "somebody"); err != nil {
		t.Fatal(out, err)
	}
	s.kubectl(t, "delete", "pod", "before", "--wait=false")
	s.gone(t, "before")
	s.runs(t, newPod("after", idle()))
	if out, err := s.Node.Output(t.Context(), "ip", "netns", "delete", "somebody"); err != nil {
		t.Fatal(out, err)
	}
	s.kubectl(t, "delete", "pod", "after", "--wait=false")
	s.gone(t, "after")
	eventually(t, podTimeout, func(ctx context.Context) string { return s.leaks(ctx) })
}
