package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	protocol "github.com/clusterd/clusterd/internal/tunnel"
	"github.com/clusterd/clusterd/manifests"
	"github.com/clusterd/clusterd/server/apiserver"
	"github.com/clusterd/clusterd/server/controllers"
	"github.com/clusterd/clusterd/server/deploy"
	"github.com/clusterd/clusterd/server/join"
	"github.com/clusterd/clusterd/server/tunnel"
)

// Deps are what a server is given by the process it runs in.
type Deps struct {
	Dir       datadir.Dir
	PKI       pki.Dir
	Transport *inproc.Transport
	// NodeIPs are the addresses that this machine has at that moment, the primary one first.
	NodeIPs func() []netip.Addr
	// AddressChanges tells when they may be others; optional.
	AddressChanges func(context.Context) (<-chan struct{}, error)
	// PublishDNS tells the cluster where the DNS servers of joined nodes answer.
	PublishDNS join.PublishDNS
	// OwnLinks are the network interfaces that the node makes; their addresses are not the machine's.
	OwnLinks []string
	// Version is clusterd's.
	Version string
	Log     *slog.Logger
}

// Server is the control plane.
type Server struct {
	api     lifecycle.Component
	store   store
	nodes   *join.Nodes
	tunnels *tunnel.Tunnels
	built   <-chan struct{}
	loops   []lifecycle.Component
}

// API is the part that everything else needs: certificates, datastore with its snapshots, API server.
func (s *Server) API() lifecycle.Component { return s.api }

// Loops are the parts that work on the API's objects.
func (s *Server) Loops() []lifecycle.Component { return s.loops }

// ControllersBuilt is closed when a kubelet may be made in this process.
func (s *Server) ControllersBuilt() <-chan struct{} { return s.built }

// New makes the control plane. It changes nothing; its error is a *config.Error with every mistake in the pass-through
// arguments and in the scheduler's configuration.
func New(cfg Config, d Deps) (*Server, error) {
	p := &config.Problems{}
	joining, err := join.New(joinConfig(cfg, d), d.Log)
	p.Add(err)
	nodes, err := join.NewNodes(d.Transport.Config(Admin(), "clusterd/nodes"), ownNode(cfg), publishDNS(cfg, d), d.Log)
	p.Add(err)
	tunnels := tunnel.New(nodes, d.Log)
	conditions, err := newConditions(tunnels, nodes, d)
	p.Add(err)
	store, err := newStore(cfg, d)
	p.Add(err)
	api, err := apiserver.New(apiserverConfig(cfg, d, store, access{joining.Front, tunnels}), d.Log)
	p.Add(err)
	once := newActive(cfg, d)
	ctl, sched, err := once.components()
	p.Add(err)
	dep, err := deploy.New(deployConfig(cfg, d), d.Log)
	p.Add(err)
	if err := p.Err(); err != nil {
		return nil, err
	}
	s := &Server{store: store, nodes: nodes, tunnels: tunnels, loops: []lifecycle.Component{dep, joining, nodes, tunnels, conditions}}
	snaps := newSnapshots(cfg, d, store)
	if cfg.Shared() {
		s.api = lifecycle.Sequence("api", store, newKeyring(cfg, d, store), newCertificates(cfg, d), snaps, api, newOwnName(cfg, d))
	} else {
		s.api = lifecycle.Sequence("api", newCertificates(cfg, d), snaps.around(store), snaps, api)
	}
	if cfg.Shared() && ctl.LeaderElection().LeaderElect {
		s.built = once.built
		s.loops = append(s.loops, once.elected(ctl))
	} else {
		s.built = ctl.Built()
		s.loops = append(s.loops, ctl, sched)
	}
	if !cfg.DisableAgent {
		s.loops = append(s.loops, newRole(cfg.NodeName, d.Transport))
	}
	return s, nil
}

// Admin is the user of clusterd's own work on the cluster: it deploys what a cluster administrator would.
func Admin() user.Info { return inproc.User("system:clusterd", user.SystemPrivilegedGroup) }

func newConditions(t *tunnel.Tunnels, nodes *join.Nodes, d Deps) (lifecycle.Component, error) {
	client, err := clientset.NewForConfig(d.Transport.Config(Admin(), "clusterd/tunnels"))
	if err != nil {
		return nil, fmt.Errorf("make the client for the nodes' conditions: %w", err)
	}
	return tunnel.NewConditions(t, nodes, client, d.Log), nil
}

// access is how nodes come in and are reached.
type access struct {
	front   func(http.Handler) http.Handler
	tunnels *tunnel.Tunnels
}

func apiserverConfig(cfg Config, d Deps, store store, to access) apiserver.Config {
	c := apiserver.Config{
		BindAddress:      cfg.BindAddress,
		Port:             cfg.HTTPSListenPort,
		AdvertiseAddress: func() netip.Addr { return advertise(cfg, d) },
		AddressChanges:   d.AddressChanges,
		ServiceCIDRs:     cfg.ServiceCIDRs,
		NodePorts:        cfg.ServiceNodePortRange.String(),
		ClusterDomain:    cfg.ClusterDomain,
		Files:            files(d.PKI),
		Args:             cfg.APIServerArgs,
		Transport:        d.Transport,
		Front:            to.front,
		Upgrades:         map[string]http.Handler{protocol.Path: to.tunnels},
		Dial:             to.tunnels.Dial,
		Shared:           cfg.Shared(),
		ResourceMetrics:  servesMetrics(cfg),
	}
	if e := cfg.Datastore; e.Kind == endpoint.Etcd {
		c.Etcd = apiserver.Etcd{Servers: e.Servers, CA: e.Files.CA, Cert: e.Files.Cert, Key: e.Files.Key}
	} else if store != nil {
		c.Datastore = store.Client
	}
	return c
}

// servesMetrics is whether the API server has metrics.k8s.io.
func servesMetrics(cfg Config) bool { return !slices.Contains(cfg.Disable, "metrics-server") }

// advertise is the API server's address for the cluster.
func advertise(cfg Config, d Deps) netip.Addr {
	switch {
	case cfg.AdvertiseAddress.IsValid():
		return cfg.AdvertiseAddress
	case cfg.BindAddress.IsValid() && !cfg.BindAddress.IsUnspecified() && !cfg.BindAddress.IsLoopback():
		return cfg.BindAddress
	}
	return d.NodeIPs()[0]
}

func controllersConfig(cfg Config, d Deps) controllers.Config {
	clientCA, clientKey := d.PKI.Path(pki.ClientCA)
	serverCA, serverKey := d.PKI.Path(pki.ServerCA)
	return controllers.Config{
		ClusterCIDRs:      cfg.ClusterCIDRs,
		ServiceCIDRs:      cfg.ServiceCIDRs,
		RootCA:            serverCA,
		ServiceAccountKey: d.PKI.ServiceKey(),
		SigningCert:       clientCA,
		SigningKey:        clientKey,
		ServingCert:       serverCA,
		ServingKey:        serverKey,
		VolumePlugins:     d.Dir.VolumePlugins(),
		Args:              cfg.ControllerManagerArgs,
		Transport:         d.Transport,
		Shared:            cfg.Shared(),
	}
}

func deployConfig(cfg Config, d Deps) deploy.Config {
	memory := ""
	if cfg.Shared() { // each server has a directory of its own
		memory = cfg.NodeName
	}
	return deploy.Config{
		Memory:     memory,
		RESTConfig: d.Transport.Config(Admin(), "clusterd/deploy"),
		Embedded:   manifests.FS,
		UserDir:    d.Dir.Manifests(),
		Disabled:   cfg.Disable,
		Vars:       map[string]string{"CLUSTER_DNS": cfg.ClusterDNS[0].String(), "CLUSTER_DOMAIN": cfg.ClusterDomain},
	}
}
