// Package server is the control-plane role: its configuration and the list of its components in start order.
//
// Config promises that everything in it was checked before anything on the host is changed: FromContext reports
// all problems at once, and a Config that it returns holds no value that a component would refuse for its form.
package server

import (
	"io/fs"
	"net/netip"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/clusterd/clusterd/internal/config"
)

// Config is what the server command was told by its command line, the environment and the configuration files,
// with defaults filled in. It is immutable once FromContext has returned it.
type Config struct {
	// DataDir is the absolute directory under which everything persistent lives.
	DataDir string
	// Token is the secret that joining nodes show. Empty: the one on disk, or else a new one.
	Token string

	// NodeName is the name of this machine's Node object: a DNS name of at most 63 characters.
	NodeName string
	// NodeIPs are this node's addresses, at most one of each family, the primary one first. Empty: found on the host.
	NodeIPs []netip.Addr
	// NodeLabels and NodeTaints are given to the Node object when it registers.
	NodeLabels map[string]string
	NodeTaints []corev1.Taint

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
	// ServiceNodePortRange are the ports of Services of the types NodePort and LoadBalancer.
	ServiceNodePortRange utilnet.PortRange
	// ClusterDNS are the addresses of the DNS Service, each inside one of ServiceCIDRs; never empty.
	ClusterDNS []netip.Addr
	// ClusterDomain is the DNS domain of the cluster, without a dot at its end.
	ClusterDomain string
	// ResolvConf is the file with the resolvers to which names outside the cluster go. Empty: the host's.
	ResolvConf string

	// WriteKubeconfig is the absolute path of the administrator's kubeconfig, WriteKubeconfigMode its permissions.
	WriteKubeconfig     string
	WriteKubeconfigMode fs.FileMode

	// Disable are the names of packaged add-ons that are not deployed, each one of AddOns.
	Disable []string
	// DisableAgent makes this machine a control plane that is no node.
	DisableAgent bool

	// The pass-through arguments have the form key=value without leading dashes, in the order given. An upstream
	// component may know the key or not: only its form was checked.
	APIServerArgs         []string
	ControllerManagerArgs []string
	SchedulerArgs         []string
	KubeletArgs           []string
	ProxyArgs             []string
	// SchedulerConfig is the absolute path of a KubeSchedulerConfiguration file that exists. Empty: upstream's defaults.
	SchedulerConfig string

	// ProxyMode is "nftables" or "iptables". Empty: chosen from what the host has.
	ProxyMode string
	// PodManifestPath is the absolute path of the static pods' directory or file. Empty: the one in the data directory.
	PodManifestPath string
	// PodManifestURL serves static pods over http or https. Empty: none.
	PodManifestURL string
	// PauseImage is the image of the pod sandbox. Empty: the one in the executable.
	PauseImage string
	// Snapshotter is "overlayfs" or "native". Empty: overlayfs where it works, else native.
	Snapshotter string

	// Debug turns on debug messages; LogFormat is "text" or "json".
	Debug     bool
	LogFormat string
}

// FromContext merges the command line, the environment and the configuration files and checks the result. It reads
// files and the host name and changes nothing. The error is a *config.Error with every problem found.
func FromContext(c *cli.Context) (Config, error) {
	p := &config.Problems{}
	v := config.Load(c, Flags(), p)
	r := reader{v: v, p: p}
	cfg := r.read()
	return cfg, p.Err()
}
