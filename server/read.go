package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterd/clusterd/internal/config"
)

var (
	proxyModes   = []string{"nftables", "iptables"}
	snapshotters = []string{"overlayfs", "native"}
	logFormats   = []string{"text", "json"}

	argument = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9.-]*=`)
)

// reader turns merged options into a Config and collects what is wrong with them.
type reader struct {
	v *config.Values
	p *config.Problems
}

func (r reader) read() Config {
	cfg := Config{
		DataDir:              r.path("data-dir", required),
		Token:                r.token(),
		NodeName:             r.nodeName(),
		NodeIPs:              r.nodeIPs(),
		NodeLabels:           r.nodeLabels(),
		NodeTaints:           r.nodeTaints(),
		BindAddress:          r.bindAddress(),
		HTTPSListenPort:      r.port("https-listen-port"),
		AdvertiseAddress:     r.advertiseAddress(),
		TLSSANs:              r.tlsSANs(),
		ClusterCIDRs:         r.prefixes("cluster-cidr"),
		ServiceCIDRs:         r.prefixes("service-cidr"),
		ServiceNodePortRange: r.portRange("service-node-port-range"),
		ClusterDNS:           r.addresses("cluster-dns"),
		ClusterDomain:        r.clusterDomain(),
		ResolvConf:           r.path("resolv-conf", existing),
		WriteKubeconfig:      r.path("write-kubeconfig", required),
		WriteKubeconfigMode:  r.mode("write-kubeconfig-mode"),
		Disable:              r.disable(),
		DisableAgent:         r.v.Bool("disable-agent"),
		SchedulerConfig:      r.path("kube-scheduler-config", existing),
		ProxyMode:            r.choice("proxy-mode", proxyModes, optional),
		PodManifestPath:      r.path("pod-manifest-path", optional),
		PodManifestURL:       r.url("pod-manifest-url"),
		PauseImage:           r.image("pause-image"),
		Snapshotter:          r.choice("snapshotter", snapshotters, optional),
		Debug:                r.v.Bool("debug"),
		LogFormat:            r.choice("log-format", logFormats, required),
	}
	r.readArguments(&cfg)
	if cfg.ClusterDNS == nil {
		cfg.ClusterDNS = tenthAddresses(cfg.ServiceCIDRs)
	}
	r.checkTogether(cfg)
	return cfg
}

func (r reader) readArguments(cfg *Config) {
	cfg.APIServerArgs = r.arguments("kube-apiserver-arg")
	cfg.ControllerManagerArgs = r.arguments("kube-controller-manager-arg")
	cfg.SchedulerArgs = r.arguments("kube-scheduler-arg")
	cfg.KubeletArgs = r.arguments("kubelet-arg")
	cfg.ProxyArgs = r.arguments("kube-proxy-arg")
}

// presence is what is asked of an option's value.
type presence int

const (
	optional presence = iota
	required          // not empty
	existing          // if not empty, a regular file that is there
)

// problem reports what is wrong with the value of option.
func (r reader) problem(option, format string, args ...any) {
	r.p.Addf("%s: %w", r.v.Place(option), fmt.Errorf(format, args...))
}

// path makes the option's value an absolute path.
func (r reader) path(option string, want presence) string {
	text := r.v.String(option)
	if text == "" {
		if want == required {
			r.problem(option, "needs a path")
		}
		return ""
	}
	abs, err := filepath.Abs(text)
	if err != nil {
		r.problem(option, "find the working directory: %w", err)
	}
	if want == existing {
		r.checkFile(option, abs)
	}
	return abs
}

func (r reader) checkFile(option, path string) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.problem(option, "%s does not exist", path)
	case err != nil:
		r.problem(option, "%w", err)
	case !st.Mode().IsRegular():
		r.problem(option, "%s is not a file", path)
	}
}

// choice takes one of allowed.
func (r reader) choice(option string, allowed []string, want presence) string {
	text := r.v.String(option)
	if text == "" && want == optional || slices.Contains(allowed, text) {
		return text
	}
	r.problem(option, "%q is not one of %s", text, strings.Join(allowed, ", "))
	return ""
}

func (r reader) port(option string) int {
	port, err := strconv.Atoi(r.v.String(option))
	if err != nil || validation.IsValidPortNum(port) != nil {
		r.problem(option, "%q is not a port from 1 to 65535", r.v.String(option))
		return 0
	}
	return port
}

func (r reader) portRange(option string) utilnet.PortRange {
	text := r.v.String(option)
	first, last, ok := strings.Cut(text, "-")
	from, err1 := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	if !ok || errors.Join(err1, err2) != nil || validation.IsValidPortNum(from) != nil || validation.IsValidPortNum(to) != nil || from > to {
		r.problem(option, "%q is not a range of ports such as 30000-32767", text)
		return utilnet.PortRange{}
	}
	return utilnet.PortRange{Base: from, Size: to - from + 1}
}

// mode wants the permissions in octal digits, with or without a zero before them.
func (r reader) mode(option string) fs.FileMode {
	text := r.v.String(option)
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 {
		r.problem(option, "%q is not an octal file mode such as 0600", text)
		return 0
	}
	return fs.FileMode(n)
}

func (r reader) url(option string) string {
	text := r.v.String(option)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.problem(option, "%q is not an http or https URL", text)
	}
	return text
}

func (r reader) image(option string) string {
	text := r.v.String(option)
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' }) {
		r.problem(option, "%q is not an image reference", text)
	}
	return text
}

// token refuses what would not survive a file or an HTTP header, without showing it.
func (r reader) token() string {
	text := r.v.String("token")
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		r.problem("token", "may contain visible ASCII characters only")
	}
	return text
}

// disable accepts each name once and only those of add-ons.
func (r reader) disable() []string {
	names := r.v.Split("disable")
	for _, name := range names {
		if !slices.Contains(AddOns(), name) {
			r.problem("disable", "there is no add-on %q, only %s", name, strings.Join(AddOns(), ", "))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// arguments takes leading dashes off, which people copy from a component's own command line.
func (r reader) arguments(option string) []string {
	var all []string
	for _, text := range r.v.List(option) {
		arg := strings.TrimLeft(text, "-")
		if !argument.MatchString(arg) {
			r.problem(option, "%q does not have the form key=value", text)
			continue
		}
		all = append(all, arg)
	}
	return all
}

// prefixes takes at most one network of each family.
func (r reader) prefixes(option string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.v.Split(option) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			r.problem(option, "%q is not a network such as 10.42.0.0/16", text)
			return nil
		}
		if p != p.Masked() {
			r.problem(option, "%s has bits set behind its prefix: did you mean %s", p, p.Masked())
			return nil
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		r.problem(option, "needs a network")
	}
	if tooMany(all, netip.Prefix.Addr) {
		r.problem(option, "takes one network, or one IPv4 and one IPv6 network")
		return nil
	}
	return all
}

// addresses parses any number of addresses; nil when there are none or one is wrong.
func (r reader) addresses(option string) []netip.Addr {
	var all []netip.Addr
	for _, text := range r.v.Split(option) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			r.problem(option, "%q is not an IP address", text)
			return nil
		}
		all = append(all, a.Unmap())
	}
	return all
}

// tooMany is whether all has more than one member of a family.
func tooMany[T any](all []T, addr func(T) netip.Addr) bool {
	return len(all) > 2 || len(all) == 2 && addr(all[0]).Is4() == addr(all[1]).Is4()
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
