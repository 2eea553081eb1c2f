// Package server is the control-plane role: its configuration and the list of its components in start order.
//
// Config promises that everything in it was checked before anything on the host is changed: FromContext reports
// all problems at once, and a Config that it returns holds no value that a component would refuse for its form.
package server

import (
	"io/fs"
	"net/netip"

	"github.com/urfave/cli/v2"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/options"
)

// Config is what the server command was told by its command line, the environment and the configuration files,
// with defaults filled in. It is immutable once FromContext has returned it.
type Config struct {
	// Node is what both roles are told.
	options.Node
	// Token is the secret that joining nodes show. Empty: the one on disk, or else a new one. CAHash is that of the servers'
	// authority, if the token was given with it.
	Token, CAHash string
	// Join is the URL, https://HOST:PORT, of a server that this one joins. It has the same datastore.
	Join string

	// BindAddress is the address on which the API server listens; unspecified (0.0.0.0 or ::) means all.
	BindAddress netip.Addr
	// HTTPSListenPort is the API server's port.
	HTTPSListenPort int
	// AdvertiseAddress is the API server's address for the cluster. Invalid (the zero Addr): the node's first address.
	AdvertiseAddress netip.Addr
	// TLSSANs are further host names and addresses in the API server's certificate.
	TLSSANs []string

	// ClusterCIDRs and ServiceCIDRs hold one prefix, or one of each family; both have the same families in the same
	// order. They are masked and do not overlap.
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	// FlannelBackend is how nodes send packets between pods to each other: one of backends.
	FlannelBackend string
	// ServiceNodePortRange are the ports of Services of the types NodePort and LoadBalancer.
	ServiceNodePortRange utilnet.PortRange
	// ClusterDNS are the addresses of the DNS Service, each inside one of ServiceCIDRs; never empty.
	ClusterDNS []netip.Addr
	// ClusterDomain is the DNS domain of the cluster, without a dot at its end.
	ClusterDomain string

	// WriteKubeconfig is the absolute path of the administrator's kubeconfig, WriteKubeconfigMode its permissions.
	WriteKubeconfig     string
	WriteKubeconfigMode fs.FileMode

	// Datastore is where the cluster's state is.
	Datastore endpoint.Endpoint

	// Disable are the names of packaged add-ons that are not deployed, each one of AddOns.
	Disable []string
	// DisableAgent makes this machine a control plane that is no node.
	DisableAgent bool

	// The pass-through arguments have the form key=value without leading dashes, in the order given. An upstream
	// component may know the key or not: only its form was checked.
	APIServerArgs         []string
	ControllerManagerArgs []string
	SchedulerArgs         []string
	// SchedulerConfig is the absolute path of a KubeSchedulerConfiguration file that exists. Empty: upstream's defaults.
	SchedulerConfig string

	// Snapshots are those of the datastore.
	Snapshots SnapshotConfig
}

// Shared is whether the datastore is one that several servers can have.
func (c Config) Shared() bool { return c.Datastore.Kind != "" && !c.Datastore.Local() }

// FromContext merges the command line, the environment and the configuration files and checks the result. It reads
// files and the host name and changes nothing. The error is a *config.Error with every problem found.
func FromContext(c *cli.Context) (Config, error) {
	p := &config.Problems{}
	v := config.Load(c, Flags(), p)
	r := reader{options.Reader{V: v, P: p}}
	cfg := r.read()
	return cfg, p.Err()
}
