package network_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/hostos"
)

// node is the test's machine: a directory, and the namespaces of its pods.
type node struct {
	dir string
	cfg network.Config
	log *logBuffer
}

// logBuffer collects what a Network says.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newNode returns an empty machine, which is emptied again after the test.
func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "net") // t.TempDir is too long for a socket
	must(t, err)
	nd := &node{dir: dir, cfg: configIn(dir), log: &logBuffer{}}
	must(t, os.Mkdir(nd.cfg.NetNSDir, 0o755))
	t.Cleanup(func() { nd.clean(t) })
	return nd
}

func (nd *node) clean(t testing.TB) {
	t.Helper()
	for _, f := range nd.netnsFiles(t) {
		unix.Unmount(f, unix.MNT_DETACH)
	}
	if l, err := netlink.LinkByName(network.DefaultBridge); err == nil {
		must(t, netlink.LinkDel(l))
	}
	for _, name := range ports(t) { // the kernel removes a namespace later
		if l, err := netlink.LinkByName(name); err == nil {
			netlink.LinkDel(l)
		}
	}
	flushRules(t)
	must(t, os.RemoveAll(nd.dir))
}

func flushRules(t testing.TB) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
}

// start runs a Network until the returned function, or the test, ends it.
func (nd *node) start(t testing.TB) (n *network.Network, stop func()) {
	t.Helper()
	n, err := network.New(nd.cfg, slog.New(slog.NewTextHandler(nd.log, nil)))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- n.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("Run ended before it was ready: %v", err)
	case <-time.After(patience):
		t.Fatalf("not ready after %s:\n%s", patience, nd.log)
	}
	return n, stop
}

// setLive tells the Networks started later which sandboxes the runtime knows.
func (nd *node) setLive(t testing.TB, pods ...*pod) {
	t.Helper()
	live := map[string]string{}
	for _, p := range pods {
		live[p.id] = p.ns
	}
	data, err := json.Marshal(live)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(nd.dir, "sandboxes.json"), data, 0o600))
}

func (nd *node) netnsFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(nd.cfg.NetNSDir, "*"))
	must(t, err)
	return files
}

func (nd *node) records(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(nd.cfg.StateDir, "pods", "*@*"))
	must(t, err)
	return files
}

// ports returns the names of the cables on the bridge.
func ports(t testing.TB) []string {
	t.Helper()
	links, err := hostos.Dump(netlink.LinkList)
	must(t, err)
	var out []string
	for _, l := range links {
		if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Name, "pod") {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}

// pod is a sandbox with a namespace and, after add, addresses.
type pod struct {
	nd     *node
	id, ns string
	v4, v6 netip.Addr
}

func (nd *node) newPod(t testing.TB, id string) *pod {
	t.Helper()
	p := &pod{nd: nd, id: id, ns: filepath.Join(nd.cfg.NetNSDir, "cni-"+id)}
	must(t, makeNetNS(p.ns))
	return p
}

// makeNetNS mounts a new network namespace at path, as the runtime does.
func makeNetNS(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	})
}

// onThread runs f on a thread that is thrown away.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// inNS runs f in the namespace at path; "" is the node's own.
func inNS(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return onThread(func() error {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return err
		}
		return f()
	})
}

// request makes what the CNI endpoint sends.
func request(command, id, ns string, portMappings ...string) []byte {
	env := fmt.Sprintf("CNI_COMMAND=%s\x00CNI_CONTAINERID=%s\x00CNI_NETNS=%s\x00CNI_IFNAME=eth0\x00\x00", command, id, ns)
	return []byte(env + fmt.Sprintf(`{"cniVersion":"1.0.0","name":"clusterd","runtimeConfig":{"portMappings":[%s]}}`, strings.Join(portMappings, ",")))
}

// ask sends a request to the agent and returns its reply.
func (nd *node) ask(req []byte) (string, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: nd.cfg.Socket, Net: "unix"})
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write(req); err != nil {
		return "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", err
	}
	reply, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	if len(reply) == 0 {
		return "", io.ErrUnexpectedEOF
	}
	if reply[0] != '0' {
		return "", fmt.Errorf("%s", reply[1:])
	}
	return string(reply[1:]), nil
}

func (p *pod) tryAdd(portMappings ...string) error {
	reply, err := p.nd.ask(request("ADD", p.id, p.ns, portMappings...))
	if err != nil {
		return err
	}
	return p.take(reply)
}

// take reads the pod's addresses from the answer to ADD.
func (p *pod) take(reply string) error {
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(reply), &r); err != nil {
		return fmt.Errorf("%w: %s", err, reply)
	}
	for _, ip := range r.IPs {
		if ip.Address.Addr().Is4() {
			p.v4 = ip.Address.Addr()
		} else {
			p.v6 = ip.Address.Addr()
		}
	}
	return nil
}

func (p *pod) add(t testing.TB, portMappings ...string) *pod {
	t.Helper()
	must(t, p.tryAdd(portMappings...))
	return p
}

func (p *pod) tryDel() error {
	_, err := p.nd.ask(request("DEL", p.id, p.ns))
	return err
}

func (p *pod) del(t testing.TB) {
	t.Helper()
	must(t, p.tryDel())
}

// outside is a machine beyond the node's uplink that has no route to the pods.
func (nd *node) outside(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(nd.dir, "outside")
	must(t, makeNetNS(path))
	ns, err := netns.GetFromPath(path)
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "uplink", 1400
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(ns)
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() {
		unix.Unmount(path, unix.MNT_DETACH)
		netlink.LinkDel(veth)
	})
	address(t, "uplink", "192.0.2.1/24", "2001:db8::1/64")
	must(t, inNS(path, func() error { address(t, "eth0", "192.0.2.2/24", "2001:db8::2/64"); return nil }))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Gw: net.ParseIP(outside4)}))
	awaitUp(t, "uplink")
	must(t, inNS(path, func() error { awaitUp(t, "eth0"); return nil }))
	return path
}

const (
	node4, node6       = "192.0.2.1", "2001:db8::1"
	outside4, outside6 = "192.0.2.2", "2001:db8::2"
)

func address(t testing.TB, ifName string, cidrs ...string) {
	t.Helper()
	l, err := netlink.LinkByName(ifName)
	must(t, err)
	for _, c := range cidrs {
		a, err := netlink.ParseAddr(c)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(l, a))
	}
	must(t, netlink.LinkSetUp(l))
}

func awaitUp(t testing.TB, ifName string) {
	for range 1000 {
		if l, err := netlink.LinkByName(ifName); err == nil && l.Attrs().OperState == netlink.OperUp {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%s does not come up", ifName)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
