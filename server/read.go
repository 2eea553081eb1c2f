package server

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/options"
)

// backends are the ways between nodes; see agent/network/overlay.
var backends = []string{"vxlan", "host-gw", "wireguard-native", "none"}

// reader turns merged options into a Config and collects what is wrong with them.
type reader struct{ options.Reader }

func (r reader) read() Config {
	cfg := Config{
		Node:                 r.Node(),
		Join:                 r.Server("join"),
		BindAddress:          r.bindAddress(),
		HTTPSListenPort:      r.Port("https-listen-port"),
		AdvertiseAddress:     r.advertiseAddress(),
		TLSSANs:              r.tlsSANs(),
		ClusterCIDRs:         r.prefixes("cluster-cidr"),
		ServiceCIDRs:         r.prefixes("service-cidr"),
		FlannelBackend:       r.Choice("flannel-backend", backends, options.Required),
		ServiceNodePortRange: r.portRange("service-node-port-range"),
		ClusterDNS:           r.Addresses("cluster-dns"),
		ClusterDomain:        r.clusterDomain(),
		WriteKubeconfig:      r.Path("write-kubeconfig", options.Required),
		WriteKubeconfigMode:  r.mode("write-kubeconfig-mode"),
		Disable:              r.disable(),
		DisableAgent:         r.V.Bool("disable-agent"),
		Datastore:            r.datastore(),
		SchedulerConfig:      r.Path("kube-scheduler-config", options.Existing),
		Snapshots:            r.snapshots(),
	}
	cfg.CAHash, cfg.Token = r.token(cfg.DataDir)
	r.readArguments(&cfg)
	if cfg.ClusterDNS == nil {
		cfg.ClusterDNS = tenthAddresses(cfg.ServiceCIDRs)
	}
	r.checkTogether(cfg)
	return cfg
}

func (r reader) readArguments(cfg *Config) {
	cfg.APIServerArgs = r.Arguments("kube-apiserver-arg")
	cfg.ControllerManagerArgs = r.Arguments("kube-controller-manager-arg")
	cfg.SchedulerArgs = r.Arguments("kube-scheduler-arg")
}

func (r reader) portRange(option string) utilnet.PortRange {
	text := r.V.String(option)
	first, last, ok := strings.Cut(text, "-")
	from, err1 := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	if !ok || errors.Join(err1, err2) != nil || validation.IsValidPortNum(from) != nil || validation.IsValidPortNum(to) != nil || from > to {
		r.Problem(option, "%q is not a range of ports such as 30000-32767", text)
		return utilnet.PortRange{}
	}
	return utilnet.PortRange{Base: from, Size: to - from + 1}
}

// mode wants the permissions in octal digits, with or without a zero before them.
func (r reader) mode(option string) fs.FileMode {
	text := r.V.String(option)
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 {
		r.Problem(option, "%q is not an octal file mode such as 0600", text)
		return 0
	}
	return fs.FileMode(n)
}

// token refuses what would not survive a file or an HTTP header, without showing it. Before it there may be the hash of the
// authority that it is for.
func (r reader) token(dataDir string) (caHash, secret string) {
	dir, _ := datadir.New(dataDir) // Node has said what is wrong with it
	option, text := r.Secret("token", dir.ServerToken())
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		r.Problem(option, "may contain visible ASCII characters only")
	}
	if caHash, secret, ok := join.Part(text); ok {
		return caHash, secret
	}
	return "", text
}

// datastore shows nothing of the value, which can hold a password.
func (r reader) datastore() endpoint.Endpoint {
	e, err := endpoint.Parse(r.V.String("datastore-endpoint"), endpoint.Files{
		CA: r.V.String("datastore-cafile"), Cert: r.V.String("datastore-certfile"), Key: r.V.String("datastore-keyfile"),
	})
	if file, ok := errors.AsType[*endpoint.FileError](err); ok {
		r.Problem(map[string]string{"CA": "datastore-cafile", "Cert": "datastore-certfile"}[file.Name], "%w", err)
	} else if err != nil {
		r.Problem("datastore-endpoint", "%w", err)
	}
	return e
}

// disable accepts each name once and only those of add-ons.
func (r reader) disable() []string {
	names := r.V.Split("disable")
	for _, name := range names {
		if !slices.Contains(AddOns(), name) {
			r.Problem("disable", "there is no add-on %q, only %s", name, strings.Join(AddOns(), ", "))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// prefixes takes at most one network of each family.
func (r reader) prefixes(option string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.V.Split(option) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			r.Problem(option, "%q is not a network such as 10.42.0.0/16", text)
			return nil
		}
		if p != p.Masked() {
			r.Problem(option, "%s has bits set behind its prefix: did you mean %s", p, p.Masked())
			return nil
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		r.Problem(option, "needs a network")
	}
	if options.TooMany(all, netip.Prefix.Addr) {
		r.Problem(option, "takes one network, or one IPv4 and one IPv6 network")
		return nil
	}
	return all
}

// tenthAddresses are the usual addresses of the cluster's DNS. Networks without a tenth address are reported elsewhere.
func tenthAddresses(cidrs []netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for _, cidr := range cidrs {
		a := cidr.Addr()
		for range 10 {
			a = a.Next()
		}
		if cidr.Contains(a) {
			all = append(all, a)
		}
	}
	return all
}
