// Package network gives the pods of this node their network: addresses from the
// node's pod CIDRs, a bridge, hostPorts and masquerading to the outside, all
// over netlink and without a tool of the host.
//
// It promises:
//   - An address belongs to one pod at a time, also when the process is killed
//     between any two instructions. What is allocated is on disk before the
//     kernel hears of it, and what no live sandbox uses is taken back at start.
//   - A running pod keeps its connections while the agent is restarted: the
//     bridge is reused, and the packet rules are replaced in one transaction.
//   - Removing what is not there succeeds.
//
// The runtime reaches it through the endpoint in the folder cni, which hands
// its environment and standard input over a unix socket.
//
// Why the table "clusterd-pods" is separate for IPv4 and IPv6: NAT in the
// family inet needs Linux 5.2, and most rules differ anyway.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/clusterd/clusterd/agent/network/ipam"
	"github.com/clusterd/clusterd/internal/hostos"
)

// DefaultBridge is the name of the pods' bridge when Config has none.
const DefaultBridge = "clusterd0"

// EndpointName is the file name of the CNI endpoint, by which the runtime finds
// it in its directory of CNI plugins.
const EndpointName = "clusterd-cni"

// Config says where the pod network is and whom it asks. All fields are
// required unless they are marked.
type Config struct {
	// Bridge is the pods' bridge; optional, DefaultBridge.
	Bridge string
	// Tunnel is the interface to pods on other nodes; optional. The host's own packet
	// filter is made to let it through like the bridge.
	Tunnel string
	// MTU returns the largest packet in bytes that a pod may send at first; optional,
	// that of the node's uplink.
	MTU func() (int, error)
	// ClusterCIDRs are the ranges of all pods of the cluster: traffic to them
	// keeps the pod's own address.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are the ranges of Service addresses; optional. The node gets a
	// route for them, so that it reaches Services without a default route: the
	// address is translated only after a route was found.
	ServiceCIDRs []netip.Prefix
	// StateDir keeps the allocations.
	StateDir string
	// Socket is the unix socket for the CNI endpoint, made with mode 0600.
	Socket string
	// CNIConfDir gets the network configuration for the runtime.
	CNIConfDir string
	// PodCIDRs returns the ranges of this node, one or one a family. It blocks
	// until the node has them.
	PodCIDRs func(context.Context) ([]netip.Prefix, error)
	// LiveSandboxes returns the network namespace path of every sandbox that
	// the runtime knows, by sandbox id. It is called once, at start.
	LiveSandboxes func(context.Context) (map[string]string, error)
	// NetNSDir is where the runtime mounts the pods' network namespaces. It has to
	// be the runtime's own: files there named cni-* that no sandbox uses are removed.
	NetNSDir string
}

// Network is the pod network of this node, a component.
type Network struct {
	cfg    Config
	log    *slog.Logger
	ledger *ipam.Ledger
	rules  ruleset
	locks  keyLocks

	isReady chan struct{} // closed when requests can be served
	mtu     atomic.Int64  // valid once ready
	pending pendingNetNS

	gateways atomic.Pointer[[]netip.Addr]
}

// New checks the configuration. It touches neither disk nor kernel.
func New(c Config, log *slog.Logger) (*Network, error) {
	if c.Bridge == "" {
		c.Bridge = DefaultBridge
	}
	if c.MTU == nil {
		c.MTU = hostos.MTU
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	n := &Network{
		cfg: c, log: log, isReady: make(chan struct{}),
		ledger: ipam.New(filepath.Join(c.StateDir, "pods")),
	}
	n.rules.network = n
	return n, nil
}

func (c Config) validate() error {
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("pod network: %s is not set", name))
		}
	}
	missing("StateDir", c.StateDir == "")
	missing("Socket", c.Socket == "")
	missing("CNIConfDir", c.CNIConfDir == "")
	missing("NetNSDir", c.NetNSDir == "")
	missing("PodCIDRs", c.PodCIDRs == nil)
	missing("LiveSandboxes", c.LiveSandboxes == nil)
	if len(c.Bridge) > maxIfName {
		errs = append(errs, fmt.Errorf("pod network: bridge name %q is longer than %d characters", c.Bridge, maxIfName))
	}
	return errors.Join(errs...)
}

// Name implements the component.
func (n *Network) Name() string { return "network" }

// Gateways are the addresses of this node on the pods' bridge, one a family.
// It is empty before the network is ready.
func (n *Network) Gateways() []netip.Addr {
	if p := n.gateways.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

// Run brings the network up, serves the CNI endpoint and blocks until ctx is
// done. Pods stay connected after it; the next Run finds everything again.
//
// The socket answers from the first moment on, but requests wait until the
// network is ready, so that a restart costs a waiting pod no failed attempt, and
// the configuration of an earlier run may tell the runtime that there is a
// network. Start it before whatever makes the runtime create pods: a namespace
// that is there before Run, unknown to the runtime, counts as left behind.
func (n *Network) Run(ctx context.Context, ready func()) error {
	old, err := netnsFiles(n.cfg.NetNSDir) // before the runtime can add one
	if err != nil {
		return err
	}
	damaged, err := n.ledger.Load()
	if err != nil {
		return err
	}
	l, err := listen(n.cfg.Socket)
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	serving.Go(func() { failed <- n.serve(ctx, l, &serving) })

	if err := n.bringUp(ctx, old, damaged); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	stop := n.rules.watch(ctx, &serving)
	defer stop()
	close(n.isReady)
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// bringUp makes the node's side of the network and brings records, kernel and
// runtime into agreement. old are the namespace files that were there before.
func (n *Network) bringUp(ctx context.Context, old []string, damaged []ipam.Key) error {
	prefixes, err := n.cfg.PodCIDRs(ctx)
	if err != nil {
		return fmt.Errorf("wait for the node's pod CIDRs: %w", err)
	}
	if err := n.ledger.Use(prefixes); err != nil {
		return err
	}
	live, err := n.cfg.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("ask the runtime for its sandboxes: %w", err)
	}
	if err := n.prepareHost(); err != nil {
		return err
	}
	if err := n.reconcile(live, old, damaged); err != nil {
		return err
	}
	if err := n.keepBridgeAddresses(); err != nil {
		return err
	}
	if err := n.rules.start(); err != nil {
		return err
	}
	gateways := n.ledger.Gateways()
	n.gateways.Store(&gateways)
	return writeConflist(n.cfg.CNIConfDir, n.cfg.Socket)
}

// prepareHost sets the node's kernel switches and its bridge.
func (n *Network) prepareHost() error {
	mtu, err := n.cfg.MTU()
	if err != nil {
		return fmt.Errorf("find the MTU of the node's uplink: %w", err)
	}
	n.mtu.Store(int64(mtu))
	bridge, err := ensureBridge(n.cfg.Bridge, mtu, n.ledger.Prefixes())
	if err != nil {
		return err
	}
	return errors.Join(n.setSysctls(), routeServices(bridge, n.cfg.ServiceCIDRs))
}
