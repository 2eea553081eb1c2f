// Package agent is the node role: the list of its components in start order, and what connects them.
//
// It promises that containers outlive it: they are left running when it stops, and are taken over when it starts again.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/agent/dns"
	"github.com/clusterd/clusterd/agent/kubelet"
	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/agent/proxy"
	"github.com/clusterd/clusterd/agent/runtime"
	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/nodewatch"
)

// Links are the network interfaces that a node makes for itself: that of its pods, and those to pods on other nodes.
var Links = []string{network.DefaultBridge, overlay.Device, overlay.WireDevice}

// Config is what a node was told.
type Config struct {
	NodeName      string
	NodeIPs       []netip.Addr
	FollowIPs     bool // the host's addresses were taken, and are taken again when they change
	ExternalIPs   []netip.Addr
	Backend       string // how pods on other nodes are reached: see agent/network/overlay
	Labels        map[string]string
	Taints        []v1.Taint
	ClusterCIDRs  []netip.Prefix
	ServiceCIDRs  []netip.Prefix
	ClusterDNS    []netip.Addr
	ClusterDomain string
	DNS           bool   // run the cluster\'s DNS server; without it somebody else answers at ClusterDNS
	ResolvConf    string // empty: the host's
	ManifestPath  string // empty: the directory in the data directory
	ManifestURL   string
	PauseImage    string // empty: the one in the executable
	Snapshotter   string // empty: chosen from what the host has
	ProxyMode     string
	KubeletArgs   []string
	ProxyArgs     []string
	KubeletWait   <-chan struct{} // optional: closed when the kubelet may be made
	Files         Files
	Debug         bool
}

// Files are the paths of the node's certificates and keys, PEM; somebody else keeps them valid.
type Files struct {
	ClientCA                string
	ServingCert, ServingKey string
}

// Deps are what a node is given by the process it runs in.
type Deps struct {
	Dir    datadir.Dir
	Host   hostos.Host
	Bundle bundle.Paths
	// API makes a client configuration that acts as u.
	API func(u user.Info, agent string) *rest.Config
	// PublishDNS tells the cluster where this node's DNS server answers. Nil: somebody else does.
	PublishDNS func(ctx context.Context, addrs []netip.Addr, port int) error
	Log        *slog.Logger
}

// Agent is a node.
type Agent struct {
	cfg     Config
	d       Deps
	node    clientset.Interface // acts as the node
	nodes   clientset.Interface // sees all nodes
	runtime *runtime.Runtime
	loops   []lifecycle.Component
}

// Runtime is the part that needs no API: it can start first.
func (a *Agent) Runtime() lifecycle.Component { return a.runtime }

// Loops are the parts that need the API and the runtime.
func (a *Agent) Loops() []lifecycle.Component { return a.loops }

// New makes a node. It changes nothing; its error is a *config.Error with every mistake in the pass-through arguments.
func New(cfg Config, d Deps) (*Agent, error) {
	conf := d.API(inproc.Node(cfg.NodeName), "kubelet")
	client, err := clientset.NewForConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("make the node's client: %w", err)
	}
	nodes, err := clientset.NewForConfig(d.API(inproc.User(user.KubeProxy), "network"))
	if err != nil {
		return nil, fmt.Errorf("make the client that sees all nodes: %w", err)
	}
	a := &Agent{cfg: cfg, d: d, node: client, nodes: nodes}
	p := &config.Problems{}
	a.runtime, err = runtime.New(a.runtimeConfig(), d.Log)
	p.Add(err)
	net, err := network.New(a.networkConfig(), d.Log)
	p.Add(err)
	kub, err := kubelet.New(a.kubeletConfig(conf), d.Log)
	p.Add(err)
	a.loops = []lifecycle.Component{kub, lifecycle.Func("node addresses", a.followAddresses)}
	if cfg.ProxyMode != "" {
		prx, err := proxy.New(a.proxyConfig(), d.Log)
		p.Add(err)
		a.loops = append(a.loops, prx)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	others, err := overlay.New(a.overlayConfig(net), d.Log)
	if err != nil {
		return nil, err
	}
	pods := []lifecycle.Component{others}
	if cfg.DNS {
		names, err := dns.New(a.dnsConfig(net), d.Log)
		p.Add(err)
		pods = append(pods, names)
	}
	// The network first: see its Run.
	a.loops = append([]lifecycle.Component{lifecycle.Sequence("network", net, lifecycle.Parallel("pods", pods...))}, a.loops...)
	return a, p.Err()
}

func (a *Agent) runtimeConfig() runtime.Config {
	dir := a.d.Dir
	return runtime.Config{
		Root:                dir.ContainerdRoot(),
		State:               dir.ContainerdState(),
		Socket:              dir.ContainerdSocket(),
		Bundle:              a.d.Bundle,
		CNIConfDir:          dir.CNIConf(),
		Snapshotter:         a.snapshotter(),
		PauseImage:          a.cfg.PauseImage,
		RestrictOOMScoreAdj: !a.d.Host.CapSysResource,
		SystemdCgroup:       a.d.Host.Systemd && a.d.Host.CgroupVersion == 2,
		ImagesDir:           dir.Images(),
		RegistriesFile:      datadir.Registries,
		Debug:               a.cfg.Debug,
	}
}

// snapshotter is the configured one, or what the look at the host, which has told the user, leaves.
func (a *Agent) snapshotter() string {
	if a.cfg.Snapshotter == "" && !a.d.Host.Overlay {
		return runtime.Native
	}
	return a.cfg.Snapshotter
}

func (a *Agent) networkConfig() network.Config {
	return network.Config{
		Tunnel:       overlay.Tunnel(a.cfg.Backend),
		MTU:          func() (int, error) { return overlay.PodMTU(a.overlayConfig(nil)) },
		ClusterCIDRs: a.cfg.ClusterCIDRs,
		ServiceCIDRs: a.cfg.ServiceCIDRs,
		StateDir:     a.d.Dir.NetworkState(),
		Socket:       a.d.Dir.CNISocket(),
		CNIConfDir:   a.d.Dir.CNIConf(),
		NetNSDir:     a.d.Dir.PodNetNS(),
		PodCIDRs: func(ctx context.Context) ([]netip.Prefix, error) {
			return nodewatch.PodCIDRs(ctx, a.node, a.cfg.NodeName)
		},
		LiveSandboxes: a.runtime.Sandboxes,
	}
}

// overlayConfig watches all Nodes as the kube-proxy of this node, since a node's own user sees only its own.
func (a *Agent) overlayConfig(pods overlay.Pods) overlay.Config {
	return overlay.Config{
		Backend:      a.cfg.Backend,
		NodeName:     a.cfg.NodeName,
		ClusterCIDRs: a.cfg.ClusterCIDRs,
		Addresses:    a.Addresses,
		External:     a.cfg.ExternalIPs,
		Pods:         pods,
		KeyFile:      a.d.Dir.WireGuardKey(),
		Nodes:        a.nodes,
		Self:         a.node,
	}
}

func (a *Agent) kubeletConfig(conf *rest.Config) kubelet.Config {
	dir := a.d.Dir
	manifests := a.cfg.ManifestPath
	if manifests == "" {
		manifests = dir.PodManifests()
	}
	start := time.Now()
	return kubelet.Config{
		NodeName:      a.cfg.NodeName,
		NodeIPs:       a.cfg.NodeIPs,
		Labels:        a.cfg.Labels,
		Taints:        a.cfg.Taints,
		RootDir:       dir.KubeletRoot(),
		PodLogsDir:    dir.PodLogs(),
		CertDir:       dir.KubeletCerts(),
		VolumePlugins: dir.VolumePlugins(),
		Socket:        dir.ContainerdSocket(),
		ManifestPath:  manifests,
		ManifestURL:   a.cfg.ManifestURL,
		ClusterDNS:    a.cfg.ClusterDNS,
		ClusterDomain: a.cfg.ClusterDomain,
		ResolvConf:    dir.ResolvConf(),
		HostResolvers: a.cfg.ResolvConf,
		ClientCA:      a.cfg.Files.ClientCA,
		Cert:          a.cfg.Files.ServingCert,
		Key:           a.cfg.Files.ServingKey,
		Args:          a.cfg.KubeletArgs,
		RESTConfig:    conf,
		Wait:          a.cfg.KubeletWait,
		NodeReady: func(ctx context.Context) error {
			_, err := nodewatch.Until(ctx, a.node, a.cfg.NodeName, nodewatch.ReadySince(start))
			return err
		},
	}
}

func (a *Agent) proxyConfig() proxy.Config {
	return proxy.Config{
		NodeName:     a.cfg.NodeName,
		Mode:         a.cfg.ProxyMode,
		ClusterCIDRs: a.cfg.ClusterCIDRs,
		RESTConfig:   a.d.API(inproc.User(user.KubeProxy), "kube-proxy"),
		Kubeconfig:   a.d.Dir.ProxyKubeconfig(),
		Args:         a.cfg.ProxyArgs,
		NodeKnown: func(ctx context.Context) error {
			_, err := nodewatch.Until(ctx, a.node, a.cfg.NodeName, nodewatch.HasAddress)
			return err
		},
	}
}

// DNSPort is the port of the node's DNS server on its pod gateway addresses.
const DNSPort = 53

func (a *Agent) dnsConfig(net *network.Network) dns.Config {
	return dns.Config{
		Addresses:    net.Gateways,
		Port:         DNSPort,
		Domain:       a.cfg.ClusterDomain,
		ServiceCIDRs: a.cfg.ServiceCIDRs,
		PodCIDRs:     a.cfg.ClusterCIDRs,
		Upstreams: func() ([]string, error) {
			r, err := hostos.Upstreams(a.cfg.ResolvConf)
			return r.Servers, err
		},
		ResolvConf: hostos.ResolvConfs(a.cfg.ResolvConf),
		RESTConfig: a.d.API(inproc.ServiceAccount("coredns"), "coredns"),
		Publish:    a.d.PublishDNS,
	}
}
