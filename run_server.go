package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clusterd/clusterd/agent"
	"github.com/clusterd/clusterd/agent/dns"
	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/token"
	"github.com/clusterd/clusterd/internal/upstream"
	"github.com/clusterd/clusterd/server"
)

const (
	// stopTimeout bounds the stop of each component.
	stopTimeout = 4 * time.Second
	// stopDeadline bounds the stop of all: what has not ended by then is left to the end of the process. Nothing is lost by
	// that; a kill is not worse.
	stopDeadline = 9500 * time.Millisecond
)

// runServer runs a control plane, and on it a node, until ctx ends. Everything that can be wrong with the configuration or
// the host is found before anything is changed.
func runServer(ctx context.Context, cfg server.Config, log *slog.Logger) error {
	if err := hostos.Notify("STATUS=starting"); err != nil {
		log.Warn("service manager not told", "error", err)
	}
	dir, err := datadir.New(cfg.DataDir)
	if err != nil {
		return err
	}
	host, err := hostos.Probe(ctx, cfg.DataDir)
	if err != nil {
		return err
	}
	root, err := compose(&cfg, dir, host, log)
	if err != nil {
		return err
	}
	needs := hostos.Needs{Node: !cfg.DisableAgent, Snapshotter: cfg.Snapshotter}
	if err := check(hostos.Preflight(host, needs), log); err != nil {
		return err
	}
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // the process ends
	if err := check(hostos.Ports(listeners(cfg, host)), log); err != nil {
		return err
	}
	if err := dir.Prepare(); err != nil {
		return err
	}
	if err := token.Ensure(dir.ServerToken(), cfg.Token); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { stopInTime(log) })
	limitGarbage()
	return lifecycle.Run(ctx, root, lifecycle.Options{Ready: report(cfg, log), StopTimeout: stopTimeout, Log: log})
}

// stopInTime ends the process if its orderly stop takes too long.
func stopInTime(log *slog.Logger) {
	upstream.Stopping()
	time.AfterFunc(stopDeadline, func() {
		log.Error("stop took too long", "limit", stopDeadline)
		exitNow(1)
	})
}

// garbagePercent is how far the heap may grow over what is live before it is collected. Half of Go's default halves what the
// garbage costs in memory; an idle cluster makes so little of it that the processor does not notice.
const garbagePercent = 50

// limitGarbage keeps memory small, unless the user has chosen with GOGC.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// compose makes the components of both roles and joins them. It changes nothing outside the process.
func compose(cfg *server.Config, dir datadir.Dir, host hostos.Host, log *slog.Logger) (lifecycle.Component, error) {
	if err := setUpstream(cfg, host, log); err != nil {
		return nil, err
	}
	if err := findAddresses(cfg); err != nil {
		return nil, err
	}
	transport := &inproc.Transport{}
	certs := pki.Dir(dir.ServerTLS())
	srv, err := server.New(*cfg, server.Deps{Dir: dir, PKI: certs, Transport: transport, NodeIPs: cfg.NodeIPs, OwnLinks: []string{agent.Bridge}, Log: log})
	if err != nil {
		return nil, err
	}
	if err := srv.ShowMetrics(); err != nil {
		return nil, err
	}
	if cfg.DisableAgent {
		return lifecycle.Sequence("clusterd", srv.API(), lifecycle.Parallel("cluster", srv.Loops()...)), nil
	}
	payload, err := bundle.Locate(dir.Payload())
	if err != nil {
		return nil, err
	}
	node, err := agent.New(agentConfig(*cfg, host, srv, certs), agent.Deps{
		Dir: dir, Host: host, Bundle: payload, API: transport.Config, Log: log,
		PublishDNS: func(ctx context.Context, addrs []netip.Addr, port int) error {
			return dns.PublishEndpoints(ctx, transport.Config(inproc.ServiceAccount("coredns"), "clusterd/dns"), cfg.NodeName, addrs, port)
		},
	})
	if err != nil {
		return nil, err
	}
	unpack := lifecycle.Task("payload", func(context.Context) error {
		if err := network.PrepareNetNS(datadir.NetNS); err != nil {
			return err
		}
		_, err := bundle.Extract(dir.Payload())
		return err
	})
	return lifecycle.Sequence("clusterd",
		lifecycle.Parallel("base", srv.API(), lifecycle.Sequence("runtime", unpack, node.Runtime())),
		lifecycle.Parallel("cluster", append(srv.Loops(), node.Loops()...)...)), nil
}

// findAddresses fills in the node's addresses, one of each family that the pods have, unless the user has given them.
func findAddresses(cfg *server.Config) error {
	if len(cfg.NodeIPs) > 0 {
		return nil
	}
	found, err := hostos.NodeAddresses()
	if err != nil {
		return fmt.Errorf("find this machine's address: %w; give one with --node-ip", err)
	}
	for _, c := range cfg.ClusterCIDRs {
		for _, a := range found {
			if a.Is4() == c.Addr().Is4() {
				cfg.NodeIPs = append(cfg.NodeIPs, a)
			}
		}
	}
	if len(cfg.NodeIPs) == 0 {
		return fmt.Errorf("this machine has no address of the family of --cluster-cidr: give one with --node-ip")
	}
	for _, a := range cfg.NodeIPs {
		for _, c := range slices.Concat(cfg.ClusterCIDRs, cfg.ServiceCIDRs) {
			if c.Contains(a) {
				return fmt.Errorf("this machine's address %s is inside %s, which belongs to the cluster: choose other networks with --cluster-cidr and --service-cidr, or another address with --node-ip", a, c)
			}
		}
	}
	return nil
}

// setUpstream takes what is process-wide out of the pass-through arguments and sets it.
func setUpstream(cfg *server.Config, host hostos.Host, log *slog.Logger) error {
	var shared upstream.Shared
	p := &config.Problems{}
	for _, c := range []struct {
		flag string
		args *[]string
	}{
		{"kube-apiserver-arg", &cfg.APIServerArgs},
		{"kube-controller-manager-arg", &cfg.ControllerManagerArgs},
		{"kube-scheduler-arg", &cfg.SchedulerArgs},
		{"kubelet-arg", &cfg.KubeletArgs},
		{"kube-proxy-arg", &cfg.ProxyArgs},
	} {
		rest, err := shared.TakeShared(c.flag, *c.args)
		p.Add(err)
		*c.args = rest
	}
	if cfg.Debug {
		shared.Verbosity = max(shared.Verbosity, 2)
	}
	exit := func(reason string) {
		log.Error("stopping", "error", reason)
		exitNow(1)
	}
	if p.Err() == nil {
		p.Add(upstream.Setup(upstream.Config{Gates: shared.Gates, Limited: !host.CapSysResource, Verbosity: shared.Verbosity, Log: log, Exit: exit}))
	}
	return p.Err()
}

func agentConfig(cfg server.Config, host hostos.Host, srv *server.Server, certs pki.Dir) agent.Config {
	return agent.Config{
		NodeName:      cfg.NodeName,
		NodeIPs:       cfg.NodeIPs,
		Labels:        cfg.NodeLabels,
		Taints:        cfg.NodeTaints,
		ClusterCIDRs:  cfg.ClusterCIDRs,
		ServiceCIDRs:  cfg.ServiceCIDRs,
		ClusterDNS:    cfg.ClusterDNS,
		ClusterDomain: cfg.ClusterDomain,
		DNS:           !slices.Contains(cfg.Disable, "dns"),
		ResolvConf:    cfg.ResolvConf,
		ManifestPath:  cfg.PodManifestPath,
		ManifestURL:   cfg.PodManifestURL,
		PauseImage:    cfg.PauseImage,
		Snapshotter:   cfg.Snapshotter,
		ProxyMode:     proxyMode(cfg, host),
		KubeletArgs:   cfg.KubeletArgs,
		ProxyArgs:     cfg.ProxyArgs,
		KubeletWait:   srv.ControllersBuilt(),
		APIServer:     server.LocalURL(cfg),
		Files:         agent.Files(server.LocalNodeFiles(certs)),
		Debug:         cfg.Debug,
	}
}

// proxyMode is how Services work here: as asked, or else by what the host has; empty when it has neither.
func proxyMode(cfg server.Config, host hostos.Host) string {
	switch {
	case cfg.ProxyMode != "":
		return cfg.ProxyMode
	case host.HasNFT:
		return "nftables"
	case host.HasIPTables:
		return "iptables"
	}
	return ""
}

// listeners are the ports that the components open.
func listeners(cfg server.Config, host hostos.Host) []hostos.Listener {
	l := []hostos.Listener{{Address: netip.AddrPortFrom(cfg.BindAddress, uint16(cfg.HTTPSListenPort)), Use: "the API server", Flag: "--https-listen-port"}}
	if cfg.DisableAgent {
		return l
	}
	l = append(l, kubeletListener(cfg.KubeletArgs))
	if proxyMode(cfg, host) != "" {
		l = append(l, proxyListener(cfg.ProxyArgs, "metrics-bind-address", "127.0.0.1:10249", "kube-proxy's metrics"),
			proxyListener(cfg.ProxyArgs, "healthz-bind-address", "127.0.0.1:10256", "kube-proxy's health"))
	}
	return l
}

func kubeletListener(args []string) hostos.Listener {
	port, err := strconv.ParseUint(argument(args, "port", "10250"), 10, 16)
	if err != nil {
		port = 10250 // the kubelet's own check says what is wrong
	}
	return hostos.Listener{Address: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)), Use: "the kubelet", Flag: "--kubelet-arg=port=PORT"}
}

func proxyListener(args []string, flag, standard, use string) hostos.Listener {
	at, err := netip.ParseAddrPort(argument(args, flag, standard))
	if err != nil {
		at = netip.MustParseAddrPort(standard)
	}
	return hostos.Listener{Address: at, Use: use, Flag: "--kube-proxy-arg=" + flag + "=ADDRESS:PORT"}
}

// argument is the value of a component's flag in the user's key=value arguments; the last one counts.
func argument(args []string, flag, standard string) string {
	for _, a := range args {
		if key, value, _ := strings.Cut(a, "="); key == flag {
			standard = value
		}
	}
	return standard
}

// check logs what the host lacks and returns what makes a start impossible, as one error with a line for each.
func check(problems []hostos.Problem, log *slog.Logger) error {
	var fatal []error
	for _, problem := range problems {
		if problem.Fatal {
			fatal = append(fatal, errors.New(problem.String()))
		} else {
			log.Warn(problem.String())
		}
	}
	return errors.Join(fatal...)
}

// report logs a line for each stage, and at the end how to use the cluster.
func report(cfg server.Config, log *slog.Logger) func(string, time.Duration) {
	return func(name string, elapsed time.Duration) {
		seconds := fmt.Sprintf("%.2fs", elapsed.Seconds())
		if name != "clusterd" {
			log.Info("ready: "+name, "after", seconds)
			return
		}
		upstream.Started()
		debug.FreeOSMemory() // a start takes more than what follows
		log.Info("the cluster is ready", "after", seconds, "kubeconfig", cfg.WriteKubeconfig)
		log.Info("use it with: " + os.Args[0] + " kubectl get pods --all-namespaces")
		if err := hostos.Notify("READY=1\nSTATUS=ready"); err != nil {
			log.Warn("service manager not told", "error", err)
		}
	}
}
