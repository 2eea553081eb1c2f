package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
)

func TestPodsReachEachOtherAndTheNode(t *testing.T) {
	nd := newNode(t)
	n, _ := nd.start(t)
	a, b := nd.newPod(t, "a").add(t), nd.newPod(t, "b").add(t)
	serve(t, b.ns, 8080)
	serve(t, "", 9090)
	awaitND(t, a.ns, b.v6.String(), 8080)
	gw := n.Gateways()
	if len(gw) != 2 || gw[0] != netip.MustParseAddr("10.42.7.1") || gw[1] != netip.MustParseAddr("fd42:0:0:7::1") {
		t.Fatalf("gateways %v", gw)
	}
	for _, c := range []struct {
		name, from, host string
		port             int
		saw              string
	}{
		{"pod to pod, IPv4", a.ns, b.v4.String(), 8080, a.v4.String()},
		{"pod to pod, IPv6", a.ns, b.v6.String(), 8080, a.v6.String()},
		{"node to pod, IPv4", "", b.v4.String(), 8080, gw[0].String()},
		{"node to pod, IPv6", "", b.v6.String(), 8080, gw[1].String()},
		{"pod to node, IPv4", a.ns, gw[0].String(), 9090, a.v4.String()},
		{"pod to node, IPv6", a.ns, gw[1].String(), 9090, a.v6.String()},
		{"pod to itself by loopback", b.ns, "127.0.0.1", 8080, "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantCall(t, c.from, "tcp", c.host, c.port, c.saw)
			wantCall(t, c.from, "udp", c.host, c.port, c.saw)
		})
	}
	for _, to := range []netip.Addr{a.v4, gw[0]} {
		if err := ping(b.ns, to); err != nil {
			t.Errorf("ping %s: %v", to, err)
		}
	}
}

func TestSocketIsPrivate(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	info, err := os.Stat(nd.cfg.Socket)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %v", info.Mode())
	}
}

func TestPodInterface(t *testing.T) {
	nd := newNode(t)
	nd.outside(t) // its uplink has the MTU
	nd.start(t)
	p := nd.newPod(t, "a").add(t)
	must(t, inNS(p.ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if l.Attrs().MTU != 1400 {
			t.Errorf("MTU %d, want the uplink's 1400", l.Attrs().MTU)
		}
		if want := net.IP(p.v4.AsSlice()).To4(); !strings.HasSuffix(string(l.Attrs().HardwareAddr), string(want)) {
			t.Errorf("MAC %s does not follow from %s", l.Attrs().HardwareAddr, p.v4)
		}
		return nil
	}))
	host, err := netlink.LinkByName(ports(t)[0])
	must(t, err)
	port, err := netlink.LinkGetProtinfo(host)
	must(t, err)
	if !port.Hairpin {
		t.Error("no hairpin on the pod's port")
	}
}

func TestAddIsRepeatable(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t)
	first := p.v4
	if p.add(t); p.v4 != first {
		t.Errorf("second ADD gave %s, the first %s", p.v4, first)
	}
	if got := len(ports(t)); got != 1 {
		t.Errorf("%d cables, want 1", got)
	}
	if _, err := nd.ask(request("CHECK", p.id, p.ns)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestDelSucceedsWithoutAnything(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	p := nd.newPod(t, "a").add(t)
	p.del(t)
	p.del(t)
	if _, err := nd.ask(request("DEL", "never-seen", "")); err != nil {
		t.Errorf("DEL of an unknown sandbox: %v", err)
	}
	if _, err := nd.ask(request("DEL", "never-seen", "/does/not/exist")); err != nil {
		t.Errorf("DEL without a namespace: %v", err)
	}
	if r, v := nd.records(t), ports(t); len(r)+len(v) != 0 {
		t.Errorf("left records %v, cables %v", r, v)
	}
	if _, err := nd.ask(request("CHECK", p.id, p.ns)); err == nil {
		t.Error("CHECK of a deleted pod succeeds")
	}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	if _, err := nd.ask(request("ADD", "a", "/does/not/exist")); err == nil {
		t.Error("ADD in a missing namespace succeeds")
	}
	file := filepath.Join(nd.dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := nd.ask(request("ADD", "a", file)); err == nil {
		t.Error("ADD in an ordinary file succeeds")
	}
	if r, v := nd.records(t), ports(t); len(r)+len(v) != 0 {
		t.Errorf("left records %v, cables %v", r, v)
	}
}

func TestBadRequests(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	for _, c := range []struct{ name, req, want string }{
		{"empty", "", "cut off"},
		{"no configuration", "CNI_COMMAND=ADD\x00\x00", "decode"},
		{"old version", "CNI_COMMAND=ADD\x00\x00" + `{"cniVersion":"0.2.0"}`, "not supported"},
		{"unknown command", string(request("FOO", "a", "/x")), "unknown CNI_COMMAND"},
		{"path as id", string(request("ADD", "../a", "/x")), "not a container id"},
		{"no namespace", string(request("ADD", "a", "")), "CNI_NETNS is not set"},
		{"unknown protocol", string(request("ADD", "a", "/x", `{"hostPort":1,"containerPort":1,"protocol":"icmp"}`)), "unknown protocol"},
		{"port too high", string(request("ADD", "a", "/x", `{"hostPort":70000,"containerPort":1}`)), "not a port number"},
		{"host address", string(request("ADD", "a", "/x", `{"hostPort":1,"containerPort":1,"hostIP":"x"}`)), "host address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := nd.ask([]byte(c.req))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestConflistComesWithReadiness(t *testing.T) {
	nd := newNode(t)
	path := filepath.Join(nd.cfg.CNIConfDir, "10-clusterd.conflist")
	nd.cfg.PodCIDRs = func(context.Context) ([]netip.Prefix, error) {
		if _, err := os.Stat(path); err == nil {
			return nil, errors.New("the conflist is there before the network")
		}
		return []netip.Prefix{podCIDR4}, nil
	}
	nd.start(t)
	data, err := os.ReadFile(path)
	must(t, err)
	var c struct {
		CNIVersion string
		Plugins    []struct {
			Type, Socket string
			Capabilities map[string]bool
		}
	}
	must(t, json.Unmarshal(data, &c))
	if c.CNIVersion != "1.0.0" || len(c.Plugins) != 1 || c.Plugins[0].Type != network.EndpointName ||
		c.Plugins[0].Socket != nd.cfg.Socket || !c.Plugins[0].Capabilities["portMappings"] {
		t.Errorf("conflist %s", data)
	}
}

func TestRequestsWaitForReadiness(t *testing.T) {
	nd := newNode(t)
	p := nd.newPod(t, "early")
	added := make(chan error, 1)
	nd.cfg.PodCIDRs = func(context.Context) ([]netip.Prefix, error) {
		go func() { added <- p.tryAdd() }()
		select {
		case err := <-added:
			return nil, errors.Join(errors.New("ADD was answered before the network was ready"), err)
		case <-time.After(200 * time.Millisecond):
			return []netip.Prefix{podCIDR4}, nil
		}
	}
	nd.start(t) // the pod's namespace is old and unknown to the runtime, but a request waits for it
	if err := <-added; err != nil {
		t.Fatalf("ADD that came early: %v", err)
	}
}

func TestManyPodsAtOnce(t *testing.T) {
	const count = 50
	nd := newNode(t)
	nd.start(t)
	pods := make([]*pod, count)
	for i := range pods {
		pods[i] = nd.newPod(t, "p"+string(rune('A'+i/26))+string(rune('a'+i%26)))
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if err := p.tryAdd(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d ADDs at once took %v", count, time.Since(began))
	seen := map[netip.Addr]bool{}
	for _, p := range pods {
		if seen[p.v4] || seen[p.v6] || !p.v4.IsValid() || !p.v6.IsValid() {
			t.Errorf("pod %s has %s and %s", p.id, p.v4, p.v6)
		}
		seen[p.v4], seen[p.v6] = true, true
	}
	serve(t, pods[count-1].ns, 80)
	wantCall(t, pods[0].ns, "tcp", pods[count-1].v4.String(), 80, pods[0].v4.String())
	began = time.Now()
	for _, p := range pods {
		wg.Go(func() {
			if err := p.tryDel(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d DELs at once took %v", count, time.Since(began))
	if r, v := nd.records(t), ports(t); len(r)+len(v) != 0 {
		t.Errorf("left records %v, cables %v", r, v)
	}
}

func TestAddressesAreNotReusedAtOnce(t *testing.T) {
	nd := newNode(t)
	_, stop := nd.start(t)
	first := nd.newPod(t, "a").add(t)
	first.del(t)
	second := nd.newPod(t, "b").add(t)
	second.del(t)
	stop()
	nd.start(t)
	third := nd.newPod(t, "c").add(t)
	if first.v4 == second.v4 || second.v4 == third.v4 || first.v4 == third.v4 {
		t.Errorf("addresses %s, %s, %s", first.v4, second.v4, third.v4)
	}
}

func TestGC(t *testing.T) {
	nd := newNode(t)
	nd.start(t)
	a := nd.newPod(t, "a").add(t)
	nd.newPod(t, "b").add(t)
	req := "CNI_COMMAND=GC\x00\x00" + `{"cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`
	_, err := nd.ask([]byte(req))
	must(t, err)
	if got := nd.records(t); len(got) != 1 || filepath.Base(got[0]) != a.id+"@eth0" {
		t.Errorf("records after GC: %v", got)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	_, err := network.New(network.Config{Bridge: "a-name-that-is-too-long"}, nil)
	for _, want := range []string{"StateDir", "Socket", "CNIConfDir", "NetNSDir", "PodCIDRs", "LiveSandboxes", "a-name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestComponentContract(t *testing.T) {
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		nd := newNode(t)
		n, err := network.New(nd.cfg, slog.New(slog.NewTextHandler(nd.log, nil)))
		must(t, err)
		return n
	})
}

func BenchmarkAddDel(b *testing.B) {
	nd := newNode(b)
	nd.start(b)
	p := nd.newPod(b, "a")
	var add, del time.Duration
	for b.Loop() {
		began := time.Now()
		p.add(b)
		added := time.Now()
		p.del(b)
		add, del = add+added.Sub(began), del+time.Since(added)
	}
	b.ReportMetric(float64(add.Microseconds())/float64(b.N), "µs/ADD")
	b.ReportMetric(float64(del.Microseconds())/float64(b.N), "µs/DEL")
}

func TestStopDoesNotWaitForASilentClient(t *testing.T) {
	nd := newNode(t)
	_, stop := nd.start(t)
	c, err := net.Dial("unix", nd.cfg.Socket)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte("CNI_"))
	must(t, err)
	began := time.Now()
	stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("stop took %v", took)
	}
}
