package network_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// machineFile holds the settings of a machine, in its directory.
const machineFile = "machine.json"

// settings is what the agent of a machine is told.
type settings struct {
	Name, Backend, API     string
	ClusterCIDRs, PodCIDRs []netip.Prefix
	Addresses, External    []netip.Addr // no Addresses: the host's
}

func (s settings) component(dir string, log *slog.Logger) (lifecycle.Component, error) {
	client, err := clientset.NewForConfig(&rest.Config{
		Host: "http://api", QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.API)
		},
	})
	if err != nil {
		return nil, err
	}
	oc := overlay.Config{
		Backend: s.Backend, NodeName: s.Name, ClusterCIDRs: s.ClusterCIDRs, External: s.External,
		Addresses: hostos.NodeAddresses, Nodes: client, Self: client, KeyFile: filepath.Join(dir, "wireguard.key"),
	}
	if s.Addresses != nil {
		oc.Addresses = func() ([]netip.Addr, error) { return s.Addresses, nil }
	}
	nc := configIn(dir)
	nc.ClusterCIDRs, nc.Tunnel = s.ClusterCIDRs, overlay.Tunnel(s.Backend)
	nc.PodCIDRs = func(context.Context) ([]netip.Prefix, error) { return s.PodCIDRs, nil }
	nc.MTU = func() (int, error) { return overlay.PodMTU(oc) }
	n, err := network.New(nc, log)
	if err != nil {
		return nil, err
	}
	oc.Pods = n
	o, err := overlay.New(oc, log)
	return lifecycle.Sequence("machine", n, o), err
}

// lan is several machines on one Ethernet, and the API that tells them of each
// other. The test's own namespace is on it too, as the router 192.0.2.254 and
// 2001:db8::fe.
type lan struct {
	api    *kubeapi.Server
	socket string
}

const lanMTU = 1500

func newLAN(t *testing.T) *lan {
	t.Helper()
	dir, err := os.MkdirTemp("", "lan")
	must(t, err)
	l := &lan{api: kubeapi.New(t), socket: filepath.Join(dir, "api.sock")}
	l.api.Define("", "v1", "Node", "nodes", false)
	listener, err := net.Listen("unix", l.socket)
	must(t, err)
	server := &http.Server{Handler: l.api}
	go server.Serve(listener)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "lan", lanMTU
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	must(t, netlink.LinkAdd(bridge))
	t.Cleanup(func() {
		server.Close()
		netlink.LinkDel(bridge)
		os.RemoveAll(dir)
	})
	address(t, "lan", "192.0.2.254/24", "2001:db8::fe/64")
	return l
}

// machine is one with a network namespace of its own, and its agent.
type machine struct {
	*node
	lan    *lan
	ns     string
	number int
	set    settings
	agent  *exec.Cmd
	ended  chan struct{}
}

// machine connects the machine called mN, whose addresses end with N. Its agent is not started.
func (l *lan) machine(t *testing.T, number int, backend string, cidrs ...string) *machine {
	t.Helper()
	if len(cidrs) == 0 {
		cidrs = []string{fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number)}
	}
	m := &machine{node: newNode(t), lan: l, number: number}
	m.set = settings{
		Name: fmt.Sprintf("m%d", number), Backend: backend, API: l.socket,
		ClusterCIDRs: m.cfg.ClusterCIDRs,
		PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.42.%d.0/24", number)), netip.MustParsePrefix(fmt.Sprintf("fd42:0:0:%d::/64", number)),
		},
	}
	m.ns = filepath.Join(m.dir, "machine")
	must(t, makeNetNS(m.ns))
	t.Cleanup(func() { unix.Unmount(m.ns, unix.MNT_DETACH) })
	m.cable(t)
	m.in(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		address(t, "eth0", cidrs...)
		awaitUp(t, "eth0")
		return netlink.LinkSetUp(lo)
	})
	return m
}

// cable connects eth0 of the machine to the LAN.
func (m *machine) cable(t *testing.T) {
	t.Helper()
	bridge, err := netlink.LinkByName("lan")
	must(t, err)
	ns, err := netns.GetFromPath(m.ns)
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex, attrs.Flags = "lan-"+m.set.Name, lanMTU, bridge.Attrs().Index, net.FlagUp
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(ns)
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { netlink.LinkDel(veth) }) // the kernel removes the namespace, and with it the cable, later
}

// in runs f on the machine.
func (m *machine) in(t *testing.T, f func() error) {
	t.Helper()
	must(t, inNS(m.ns, f))
}

// join puts the machine's Node into the API, without what its agent writes.
func (m *machine) join(t *testing.T) *machine {
	t.Helper()
	n := v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: m.set.Name}}
	for _, p := range m.set.PodCIDRs {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p.String())
	}
	m.lan.api.Put("/api/v1/nodes/"+m.set.Name, n)
	return m
}

func (m *machine) leave() { m.lan.api.Delete("/api/v1/nodes/" + m.set.Name) }

// run starts the agent. It ends with the test, or by halt.
func (m *machine) run(t *testing.T) *machine {
	t.Helper()
	data, err := json.Marshal(m.set)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(m.dir, machineFile), data, 0o600))
	m.agent = exec.Command("/proc/self/exe")
	m.agent.Env = append(os.Environ(), agentVar+"="+m.dir)
	m.agent.Stderr = m.log
	m.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := m.agent.StdoutPipe()
	must(t, err)
	started, ended := make(chan error), make(chan struct{})
	m.ended = ended
	cmd := m.agent
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the agent gets this thread's namespace, and ends with the thread
		ns, err := netns.GetFromPath(m.ns)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			cmd.Process.Wait()
		}
	}()
	must(t, <-started)
	t.Cleanup(sync.OnceFunc(func() { cmd.Process.Kill(); <-ended }))
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("agent of %s: %q %v\n%s", m.set.Name, line, err, m.log)
	}
	return m
}

func (m *machine) halt(t *testing.T) {
	t.Helper()
	must(t, m.agent.Process.Signal(syscall.SIGTERM))
	select {
	case <-m.ended:
	case <-time.After(patience):
		t.Fatalf("the agent of %s does not end\n%s", m.set.Name, m.log)
	}
}

// podOn adds a pod that answers at port 80.
func (m *machine) podOn(t *testing.T, id string) *pod {
	t.Helper()
	p := m.newPod(t, id).add(t)
	serve(t, p.ns, 80)
	return p
}

// routes, neighbours and forwarding entries are what is on the machine because of others.
func (m *machine) entries(t *testing.T) (routes, neighs, fdb []string) {
	t.Helper()
	m.in(t, func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all, err := hostos.Dump(func() ([]netlink.Route, error) {
				return netlink.RouteListFiltered(family, &netlink.Route{Protocol: 205}, netlink.RT_FILTER_PROTOCOL)
			})
			if err != nil {
				return err
			}
			for _, r := range all {
				routes = append(routes, fmt.Sprintf("%s %s", r.Dst, r.Gw))
			}
		}
		link, err := netlink.LinkByName(overlay.Device)
		if err != nil {
			return nil // no tunnel
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
			all, err := hostos.Dump(func() ([]netlink.Neigh, error) {
				return netlink.NeighList(link.Attrs().Index, family)
			})
			if err != nil {
				return err
			}
			for _, n := range all {
				text := fmt.Sprintf("%s %s", n.HardwareAddr, n.IP)
				switch {
				case family == unix.AF_BRIDGE:
					fdb = append(fdb, text)
				case n.State&netlink.NUD_PERMANENT != 0 && !n.IP.IsMulticast():
					neighs = append(neighs, text)
				}
			}
		}
		return nil
	})
	return routes, neighs, fdb
}

// wantEntries waits until there are so many of each.
func (m *machine) wantEntries(t *testing.T, routes, neighs, fdb int) {
	t.Helper()
	eventually(t, func() error {
		r, n, f := m.entries(t)
		if len(r) != routes || len(n) != neighs || len(f) != fdb {
			return fmt.Errorf("%s has the routes %v, neighbours %v and forwarding entries %v; want %d, %d and %d\n%s", m.set.Name, r, n, f, routes, neighs, fdb, m.log)
		}
		return nil
	})
}
