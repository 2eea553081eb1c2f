package dns_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/agent/dns"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

var _ lifecycle.Component = (*dns.Server)(nil)

const slices = "/apis/discovery.k8s.io/v1/namespaces/"

// api is a cluster with a Service, a headless one with a named pod, and two
// external names.
func api(tb testing.TB) *kubeapi.Server {
	s := kubeapi.New(tb)
	s.Define("", "v1", "Service", "services", true)
	s.Define("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true)
	http := []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	for _, svc := range []corev1.Service{
		service("web", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.43.0.7", ClusterIPs: []string{"10.43.0.7"}, Ports: http}),
		service("db", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: http}),
		service("outside", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "name.example.org"}),
		service("alias", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"}),
	} {
		s.Put("/api/v1/namespaces/default/services/"+svc.Name, svc)
	}
	s.Put(slices+"default/endpointslices/db-1", discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Name: "db-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.9"}, Hostname: new("db-0")}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	})
	return s
}

func service(name string, spec corev1.ServiceSpec) corev1.Service {
	return corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       spec,
	}
}

// freePort finds a port that UDP and TCP have free on 127.0.0.1.
func freePort(tb testing.TB) int {
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		p, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(port))
		l.Close()
		if err == nil {
			p.Close()
			return port
		}
	}
	tb.Fatal("no free port")
	return 0
}

func config(tb testing.TB, s *kubeapi.Server) dns.Config {
	return dns.Config{
		Addresses:    func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} },
		Port:         freePort(tb),
		Domain:       "cluster.local",
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		RESTConfig:   s.Config(),
	}
}

// start runs a server and returns its address.
func start(tb testing.TB, c dns.Config) string {
	tb.Helper()
	s, err := dns.New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("ended with %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		tb.Fatalf("ended before ready: %v", err)
	case <-time.After(10 * time.Second):
		tb.Fatal("not ready")
	}
	return "127.0.0.1:" + strconv.Itoa(c.Port)
}

// ask returns the answer's code and its records' data, without names and TTLs.
func ask(tb testing.TB, network, server, name string, qtype uint16) (int, []string) {
	tb.Helper()
	q := new(mdns.Msg).SetQuestion(mdns.Fqdn(name), qtype)
	r, _, err := (&mdns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(q, server)
	if err != nil {
		tb.Fatalf("%s %s over %s: %v", name, mdns.TypeToString[qtype], network, err)
	}
	var data []string
	for _, rr := range r.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
		if rr.Header().Ttl > 30 {
			tb.Errorf("%s may be kept for %d seconds", name, rr.Header().Ttl)
		}
	}
	return r.Rcode, data
}

func TestAnswersWithoutUpstream(t *testing.T) {
	server := start(t, config(t, api(t)))
	for _, row := range []struct {
		name  string
		qtype uint16
		code  int
		data  string
	}{
		{"web.default.svc.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "10.43.0.7"},
		{"WEB.default.SVC.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "10.43.0.7"},
		{"web.default.svc.cluster.local", mdns.TypeAAAA, mdns.RcodeSuccess, ""},
		{"_http._tcp.web.default.svc.cluster.local", mdns.TypeSRV, mdns.RcodeSuccess, "0 100 80 web.default.svc.cluster.local."},
		{"db.default.svc.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "10.42.0.9"},
		{"db-0.db.default.svc.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "10.42.0.9"},
		{"_http._tcp.db.default.svc.cluster.local", mdns.TypeSRV, mdns.RcodeSuccess, "0 100 8080 db-0.db.default.svc.cluster.local."},
		{"10-42-0-33.default.pod.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "10.42.0.33"},
		{"outside.default.svc.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "name.example.org."},
		{"alias.default.svc.cluster.local", mdns.TypeA, mdns.RcodeSuccess, "web.default.svc.cluster.local. 10.43.0.7"},
		{"7.0.43.10.in-addr.arpa", mdns.TypePTR, mdns.RcodeSuccess, "web.default.svc.cluster.local."},
		{"9.0.42.10.in-addr.arpa", mdns.TypePTR, mdns.RcodeSuccess, "db-0.db.default.svc.cluster.local."},
		{"8.0.43.10.in-addr.arpa", mdns.TypePTR, mdns.RcodeNameError, ""},
		{"nobody.default.svc.cluster.local", mdns.TypeA, mdns.RcodeNameError, ""},
		{"dns-version.cluster.local", mdns.TypeTXT, mdns.RcodeSuccess, `"1.1.0"`},
		{"www.example.org", mdns.TypeA, mdns.RcodeServerFailure, ""},
		{"1.1.168.192.in-addr.arpa", mdns.TypePTR, mdns.RcodeServerFailure, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if row.qtype == mdns.TypeTXT && network == "tcp" {
				continue // its time to live is none of ours
			}
			begin := time.Now()
			code, data := askAny(t, network, server, row.name, row.qtype)
			if code != row.code || strings.Join(data, " ") != row.data {
				t.Errorf("%s %s over %s: %s %q", row.name, mdns.TypeToString[row.qtype], network, mdns.RcodeToString[code], data)
			}
			if took := time.Since(begin); took > 500*time.Millisecond {
				t.Errorf("%s over %s took %s", row.name, network, took)
			}
		}
	}
}

// askAny is ask without a look at the time to live of the fixed TXT record.
func askAny(t *testing.T, network, server, name string, qtype uint16) (int, []string) {
	if qtype != mdns.TypeTXT {
		return ask(t, network, server, name, qtype)
	}
	r, err := mdns.Exchange(new(mdns.Msg).SetQuestion(mdns.Fqdn(name), qtype), server)
	if err != nil || len(r.Answer) != 1 {
		t.Fatalf("%s: %v, %v", name, r, err)
	}
	return r.Rcode, []string{strings.TrimPrefix(r.Answer[0].String(), r.Answer[0].Header().String())}
}

func TestChangesOfServicesAreSeen(t *testing.T) {
	a := api(t)
	server := start(t, config(t, a))
	if code, _ := ask(t, "udp", server, "new.default.svc.cluster.local", mdns.TypeA); code != mdns.RcodeNameError {
		t.Fatalf("got %s", mdns.RcodeToString[code])
	}
	a.Put("/api/v1/namespaces/default/services/new", service("new", corev1.ServiceSpec{ClusterIP: "10.43.0.99", ClusterIPs: []string{"10.43.0.99"}}))
	eventually(t, "the new Service", func() bool {
		_, data := ask(t, "udp", server, "new.default.svc.cluster.local", mdns.TypeA)
		return len(data) == 1 && data[0] == "10.43.0.99"
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// upstream is a resolver on 127.0.0.2 and up; cluster DNS refuses to use
// loopback ones, so the tests reach it through the address of an interface.
func upstream(t *testing.T, addr, answer string) (string, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	udp, err := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	srv := &mdns.Server{PacketConn: udp, NotifyStartedFunc: func() { close(started) }}
	srv.Handler = mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		asked.Add(1)
		r := new(mdns.Msg).SetReply(q)
		rr, _ := mdns.NewRR(q.Question[0].Name + " 20 IN A " + answer)
		r.Answer = append(r.Answer, rr)
		_ = w.WriteMsg(r)
	})
	go func() { _ = srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = srv.Shutdown() })
	return udp.LocalAddr().String(), &asked
}

// hostAddress is an address of this machine that is not a loopback one.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("this machine has no address but loopback")
	return ""
}

func TestUpstreamsChangeWhileServing(t *testing.T) {
	first, asked := upstream(t, hostAddress(t), "192.0.2.1")
	file := filepath.Join(t.TempDir(), "resolv.conf")
	c := config(t, api(t))
	c.ResolvConf = []string{file}
	c.Upstreams = func() ([]string, error) {
		b, err := os.ReadFile(file)
		return strings.Fields(string(b)), err
	}
	server := start(t, c)
	if code, _ := ask(t, "udp", server, "a.example.org", mdns.TypeA); code != mdns.RcodeServerFailure {
		t.Fatalf("without a file: %s", mdns.RcodeToString[code])
	}
	replace(t, file, first)
	eventually(t, "the first resolver", func() bool {
		_, data := ask(t, "udp", server, "b.example.org", mdns.TypeA)
		return len(data) == 1 && data[0] == "192.0.2.1"
	})
	before := asked.Load()
	ask(t, "udp", server, "b.example.org", mdns.TypeA)
	if asked.Load() != before {
		t.Error("the answer was not kept")
	}
	if _, data := ask(t, "udp", server, "outside.default.svc.cluster.local", mdns.TypeA); strings.Join(data, " ") != "name.example.org. 192.0.2.1" {
		t.Errorf("external name: %q", data)
	}
	second, _ := upstream(t, hostAddress(t), "192.0.2.2")
	replace(t, file, second)
	n := 0
	eventually(t, "the second resolver", func() bool {
		n++
		_, data := ask(t, "udp", server, "c"+strconv.Itoa(n)+".example.org", mdns.TypeA)
		return len(data) == 1 && data[0] == "192.0.2.2"
	})
}

// replace writes a file the way resolv.conf is written: beside, then renamed.
func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

func TestDeadUpstreamIsPassedOver(t *testing.T) {
	host := hostAddress(t)
	dead := net.JoinHostPort(host, strconv.Itoa(freePort(t)))
	alive, _ := upstream(t, host, "192.0.2.3")
	c := config(t, api(t))
	c.Upstreams = func() ([]string, error) { return []string{dead, alive}, nil }
	server := start(t, c)
	if _, data := ask(t, "udp", server, "www.example.org", mdns.TypeA); len(data) != 1 || data[0] != "192.0.2.3" {
		t.Fatalf("got %q", data)
	}
}

func TestTakenPortIsAnError(t *testing.T) {
	c := config(t, api(t))
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(c.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := dns.New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(t.Context(), func() { t.Error("ready") })
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(c.Port)) {
		t.Fatalf("got %v", err)
	}
}

func TestContract(t *testing.T) {
	a := api(t)
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		c := config(t, a)
		c.RESTConfig = rest.CopyConfig(c.RESTConfig)
		transport := &http.Transport{DisableKeepAlives: true}
		c.RESTConfig.Transport = transport
		c.ResolvConf = []string{"/etc/resolv.conf"}
		c.Publish = func(ctx context.Context, addrs []netip.Addr, port int) error {
			return dns.PublishEndpoints(ctx, c.RESTConfig, "n", addrs, port)
		}
		s, err := dns.New(c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, testkit.MayLeak("net/http/httptest"), testkit.MayLeak("net/http.(*conn)"), testkit.MayLeak("net/http.(*Server)"))
}

func TestPublishIsRepeatedUntilItWorks(t *testing.T) {
	c := config(t, api(t))
	var tries atomic.Int64
	c.Publish = func(context.Context, []netip.Addr, int) error {
		if tries.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	start(t, c)
	if n := tries.Load(); n != 3 {
		t.Errorf("ready after %d tries", n)
	}
}

func TestPublishEndpoints(t *testing.T) {
	a := api(t)
	v4, v6 := netip.MustParseAddr("10.42.0.1"), netip.MustParseAddr("fd42::1")
	publish := func(port int, addrs ...netip.Addr) {
		t.Helper()
		if err := dns.PublishEndpoints(t.Context(), a.Config(), "n1", addrs, port); err != nil {
			t.Fatal(err)
		}
	}
	path := slices + "kube-system/endpointslices/kube-dns-n1"
	publish(53, v4)
	publish(53, v4)
	publish(53, v4, v6)
	publish(54, v4, v6)
	publish(54, v4)
	want := []string{"POST " + path, "POST " + path + "-ipv6", "PUT " + path, "PUT " + path + "-ipv6", "DELETE " + path + "-ipv6"}
	if got := a.Writes(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("wrote %q, want %q", got, want)
	}
	labels := a.Get(path)["metadata"].(kubeapi.Object)["labels"].(kubeapi.Object)
	if labels["kubernetes.io/service-name"] != "kube-dns" || labels["endpointslice.kubernetes.io/managed-by"] != "clusterd" {
		t.Errorf("labels are %v", labels)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	if _, err := dns.New(dns.Config{Port: 53}, nil); err == nil {
		t.Fatal("a configuration without addresses was accepted")
	}
}
