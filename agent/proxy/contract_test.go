package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/configz"

	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// nodeVar marks the process that has a network of its own.
const nodeVar = "CLUSTERD_TEST_NODE"

// TestMain runs the tests in a network namespace of their own: kube-proxy writes packet rules.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of agent/proxy write the kernel's packet rules: run them as root")
		os.Exit(1)
	}
	if os.Getenv(nodeVar) == "" {
		os.Exit(runAsNode())
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "set up the node's loopback:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runAsNode() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), nodeVar+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "start the tests in a namespace of their own:", err)
		return 1
	}
	return 0
}

// api is a cluster with the node and a Service.
func api(t *testing.T, address string) *kubeapi.Server {
	t.Helper()
	s := kubeapi.New(t)
	s.Define("", "v1", "Node", "nodes", false)
	s.Define("", "v1", "Service", "services", true)
	s.Define("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true)
	s.Define("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", false)
	s.Define("events.k8s.io", "v1", "Event", "events", true)
	s.Put("/api/v1/nodes/one", v1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.5"}}},
	})
	s.Put("/api/v1/namespaces/default/services/web", v1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	return s
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// newProxy gives each proxy ports of its own, since kube-proxy keeps them until the process ends, and makes room for its
// configuration, which upstream has once a process.
func newProxy(t *testing.T, s *kubeapi.Server) *Proxy {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("kube-proxy needs nft")
	}
	configz.Delete("kubeproxy.config.k8s.io")
	c := testConfig()
	c.ClusterCIDRs = c.ClusterCIDRs[:1]
	c.Kubeconfig = filepath.Join(t.TempDir(), "kube-proxy.yaml")
	c.RESTConfig = s.Config()
	c.Args = []string{fmt.Sprintf("healthz-bind-address=127.0.0.1:%d", freePort(t)), fmt.Sprintf("metrics-bind-address=127.0.0.1:%d", freePort(t))}
	p, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestServicesGetRules looks for the Service's address in the kernel's rules. It is the first test, since the proxies of the
// contract's go on.
func TestServicesGetRules(t *testing.T) {
	address := fmt.Sprintf("10.43.%d.%d", rand.IntN(250), 1+rand.IntN(250)) // of this run alone
	s := api(t, address)
	run := func() <-chan error {
		p, ended := newProxy(t, s), make(chan error, 1)
		go func() { ended <- p.Run(t.Context(), func() {}) }()
		return ended
	}
	ended := run()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			if !strings.Contains(err.Error(), "twice") { // one of an earlier run was faster
				t.Fatal(err)
			}
			ended = run()
		default:
		}
		out, err := exec.Command("nft", "list", "table", "ip", "kube-proxy").CombinedOutput()
		if err == nil && strings.Contains(string(out), address) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the Service has no rules: %v: %s", err, out)
		}
	}
}

// TestContract excuses all that kube-proxy starts: it cannot be ended.
func TestContract(t *testing.T) {
	s := api(t, "10.43.0.7")
	testkit.Component(t, func(t *testing.T) lifecycle.Component { return newProxy(t, s) },
		testkit.MayLeak("k8s.io/"), testkit.MayLeak("net/http"), testkit.MayLeak("os/exec"), testkit.MayLeak("time.goFunc"),
		testkit.MayLeak("context.(*cancelCtx).propagateCancel"))
}

// argument is the value of a flag in a component's arguments.
func argument(args []string, flag string) string {
	for _, a := range args {
		if value, ok := strings.CutPrefix(a, flag+"="); ok {
			return value
		}
	}
	return ""
}

// TestStopBeforeTheNodeIsKnown: kube-proxy, once started, would end the process with a failure if it were stopped while it
// waits for the node, as a server is that is stopped within the first second of its node.
func TestStopBeforeTheNodeIsKnown(t *testing.T) {
	p := newProxy(t, api(t, "10.43.7.9"))
	started := make(chan struct{})
	p.cfg.NodeKnown = func(ctx context.Context) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, func() {}) }()
	<-started
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", argument(p.cfg.Args, "metrics-bind-address")); err == nil {
		_ = c.Close()
		t.Error("kube-proxy was started")
	}
}
