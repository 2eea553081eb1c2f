// Package overlay leads packets to the pods of other nodes: it makes a route for
// each Node of the cluster, and with VXLAN or WireGuard the tunnel device that they
// lead into, all over netlink and from the Node objects alone.
//
// It promises:
//   - Nothing is flooded or learned: neighbours and forwarding entries are
//     permanent, one of each a node and address family.
//   - What somebody removes from the kernel comes back within seconds, and what
//     belongs to a node that left goes. An idle cluster programs nothing: it is
//     woken by the API's and the kernel's own news and never asks in turns.
//   - Traffic goes on while the process is away, unless the kernel has no WireGuard
//     and the process does it. The next one finds the device and the entries, and
//     changes only what is not as it should be.
//   - There is no device as long as no other node needs one.
//   - With WireGuard nothing that is for another node's pods leaves this one in the
//     clear, also while the process is away. An idle tunnel is silent, but for a
//     small packet each 25 seconds to nodes that are not on a network of this one.
//
// What a node has to tell the others is in annotations of its own Node object;
// see peer.go. Which way to another node is taken is decided in plan.go, what is
// in the kernel is made equal to it in apply.go.
//
// Why the node's address on the pods' bridge is the tunnel device's too: pods see
// one address for the node, on whatever way its packets come, and their answers
// go back through the tunnel.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/nodewatch"
)

// The ways to pods on other nodes; the names are flannel's.
const (
	VXLAN     = "vxlan"
	HostGW    = "host-gw"
	WireGuard = "wireguard-native"
	None      = "none"
)

// The names of the tunnels.
const (
	Device     = "clusterd-vx"
	WireDevice = "clusterd-wg"
)

// Tunnel is the name of the one that a backend may have.
func Tunnel(backend string) string {
	if backend == WireGuard {
		return WireDevice
	}
	return Device
}

// Pods is the pod network of this node.
type Pods interface {
	// Gateways are the node's own addresses in its pods' network, one a family.
	Gateways() []netip.Addr
	// SetMTU changes the largest packet of all pods, running ones too.
	SetMTU(int) error
}

// Config says how and for whom. All fields are required unless they are marked.
type Config struct {
	// Backend is VXLAN, HostGW, WireGuard or None.
	Backend  string
	NodeName string
	// ClusterCIDRs are the ranges of all pods. The family of the first is the one
	// by which nodes send to each other where they have a choice.
	ClusterCIDRs []netip.Prefix
	// Addresses returns this node's addresses, the primary one first. It is asked
	// again when something on the host has changed.
	Addresses func() ([]netip.Addr, error)
	// External are addresses of this node by which nodes elsewhere reach it; optional.
	External []netip.Addr
	Pods     Pods
	// KeyFile holds the private key of the WireGuard tunnel. It is made when it is
	// missing and needed.
	KeyFile string
	// Nodes may list and watch all Nodes, Self change this one's annotations.
	Nodes, Self clientset.Interface
}

// Overlay is the way to pods on other nodes, a component. It needs Pods to be
// ready when it is run.
type Overlay struct {
	cfg   Config
	log   *slog.Logger
	nodes *nodewatch.Nodes

	changed chan struct{} // has room for one
	news    *news
	wire    *wireguard
	planned *plan    // what the kernel was last brought to; nil: unknown
	mtu     int      // what the pods were last given
	told    []string // the complaints that are in the log
}

// New checks the configuration. It touches neither kernel nor API.
func New(c Config, log *slog.Logger) (*Overlay, error) {
	var errs []error
	if !slices.Contains([]string{VXLAN, HostGW, WireGuard, None}, c.Backend) {
		errs = append(errs, fmt.Errorf("pod network: there is no backend %q", c.Backend))
	}
	if c.NodeName == "" || len(c.ClusterCIDRs) == 0 || c.Addresses == nil || c.Pods == nil || c.Nodes == nil || c.Self == nil || c.KeyFile == "" {
		errs = append(errs, errors.New("pod network: NodeName, ClusterCIDRs, Addresses, Pods, Nodes, Self and KeyFile have to be set"))
	}
	o := &Overlay{cfg: c, log: log, changed: make(chan struct{}, 1), wire: &wireguard{keyFile: c.KeyFile, log: log}}
	only := ""
	if c.Backend == None {
		only = c.NodeName // its own annotations are all that may have to be changed
	}
	o.nodes = nodewatch.NewNodes(c.Nodes, only, keep, o.poke)
	return o, errors.Join(errs...)
}

// poke makes the loop look again.
func (o *Overlay) poke() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Name implements the component.
func (o *Overlay) Name() string { return "overlay" }

// The times between two attempts when something does not work.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Run keeps the kernel and this node's annotations as they should be until ctx
// is done, and leaves everything as it is then. It is ready when the first
// attempt is made: a kernel without VXLAN or an API that is away ends no node.
func (o *Overlay) Run(ctx context.Context, ready func()) error {
	news, err := watchKernel()
	if err != nil {
		return err
	}
	o.news = news
	kernel, stop := news.follow(o.log)
	defer stop()
	defer o.wire.close()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); o.nodes.Run(ctx) }()
	defer func() { cancel(); <-ended }()

	select {
	case <-ctx.Done():
		return nil
	case <-o.nodes.Synced():
	}
	wait := firstRetry
	retry := time.NewTimer(0)
	defer retry.Stop()
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-kernel:
			o.planned = nil
			o.log.Debug("looked at the kernel again: somebody else has changed something")
		case <-o.changed:
		case <-retry.C:
		}
		err := o.reconcile(ctx)
		if first {
			first = false
			ready()
		}
		if err != nil && ctx.Err() == nil {
			retry.Reset(wait)
			wait = min(2*wait, lastRetry)
		} else {
			wait = firstRetry
		}
	}
}

// reconcile looks at the Nodes and the host, and changes what is not as it follows from them.
func (o *Overlay) reconcile(ctx context.Context) error {
	var complaints []string
	h, err := look(o.cfg)
	if err == nil && o.cfg.Backend == WireGuard {
		err = o.wire.loadKey()
		h.key = o.wire.key.PublicKey()
	}
	if err != nil {
		o.complain([]string{err.Error()})
		return err
	}
	self, peers, odd := o.members()
	complaints = append(complaints, odd...)
	want, odd := h.plan(o.cfg.Backend, peers)
	complaints = append(complaints, odd...)
	err = errors.Join(o.program(want), o.setMTU(h.podMTU(o.cfg.Backend)))
	if self != nil {
		err = errors.Join(err, o.announce(ctx, self, h))
	}
	if err != nil {
		complaints = append(complaints, err.Error())
	}
	o.complain(complaints)
	return err
}

// members returns this node's Node, nil when there is none yet, and all others
// that have told where they are.
func (o *Overlay) members() (self *v1.Node, peers []peer, odd []string) {
	for _, n := range o.nodes.List() {
		if n.Name == o.cfg.NodeName {
			self = n
			continue
		}
		p, ok, err := peerOf(n)
		if err != nil {
			odd = append(odd, err.Error())
		}
		if ok {
			peers = append(peers, p)
		}
	}
	slices.Sort(odd)
	return self, peers, odd
}

func (o *Overlay) program(want plan) error {
	if o.planned != nil && o.planned.equal(want) {
		return nil
	}
	o.planned = nil
	device, changes, err := want.apply(o.wire)
	o.news.device.Store(int64(device))
	if err != nil {
		return err
	}
	if changes > 0 {
		o.log.Debug("programmed the way to other nodes' pods", "changes", changes, "routes", len(want.routes))
	}
	o.planned = &want
	return nil
}

func (o *Overlay) setMTU(mtu int) error {
	if o.mtu == mtu {
		return nil
	}
	if err := o.cfg.Pods.SetMTU(mtu); err != nil {
		return err
	}
	o.mtu = mtu
	return nil
}

// complain says what is wrong once, and again when it had been right in between.
func (o *Overlay) complain(now []string) {
	for _, c := range now {
		if !slices.Contains(o.told, c) {
			o.log.Warn("pods on other nodes: " + c)
		}
	}
	o.told = now
}
