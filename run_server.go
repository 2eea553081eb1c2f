package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/clusterd/clusterd/agent"
	"github.com/clusterd/clusterd/agent/dns"
	"github.com/clusterd/clusterd/agent/join"
	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/internal/token"
	"github.com/clusterd/clusterd/internal/twice"
	"github.com/clusterd/clusterd/server"
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
	if err := meet(ctx, cfg, dir, log); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to stop
		}
		return err
	}
	if err := claim(dir, cfg.WriteKubeconfig, !cfg.DisableAgent); err != nil {
		return err
	}
	if err := finishRestore(dir, log); err != nil {
		return err
	}
	if err := dir.PrepareServer(); err != nil {
		return err
	}
	if err := restoreCopies(dir, log); err != nil {
		return err
	}
	if !cfg.Shared() { // else it is the cluster's, and made with it
		if err := token.Ensure(dir.ServerToken(), cfg.Token); err != nil {
			return err
		}
	}
	if !cfg.DisableAgent {
		if err := keepName(cfg.Node, dir, log); err != nil {
			return err
		}
	}
	context.AfterFunc(ctx, func() { stopInTime(log) })
	limitGarbage()
	go sleepLonger(ctx, log)
	ready := stages(log, dir, func(after string) {
		if err := twice.Save(dir.ServerCopies(), lasting(dir)...); err != nil {
			log.Warn("what cannot be made again is not kept twice", "error", err)
		}
		welcome(cfg, after, log)
	})
	return lifecycle.Run(ctx, root, lifecycle.Options{Ready: ready, StopTimeout: stopTimeout, Log: log})
}

// lasting are the server's files that every client and node of the cluster depends on.
func lasting(dir datadir.Dir) []string {
	return append(pki.Dir(dir.ServerTLS()).Lasting(), dir.ServerToken())
}

// restoreCopies gives back those of them that a power cut has emptied.
func restoreCopies(dir datadir.Dir, log *slog.Logger) error {
	restored, err := twice.Restore(dir.ServerCopies(), lasting(dir)...)
	for _, file := range restored {
		log.Warn("a file was empty, as after a power cut: it is given back from its second copy", "file", file)
	}
	return err
}

// meet asks the server that this one joins, unless it has joined before, whether it is of the cluster that the token is for,
// and whether the settings are the cluster's.
func meet(ctx context.Context, cfg server.Config, dir datadir.Dir, log *slog.Logger) error {
	if cfg.Join == "" {
		return nil
	}
	if _, err := os.Stat(pki.Dir(dir.ServerTLS()).ServiceKey()); err == nil {
		return nil
	}
	t, err := cfg.JoinToken()
	if err != nil {
		return err
	}
	log.Info("joining", "server", cfg.Join, "node", cfg.NodeName)
	info, err := join.Ask(ctx, cfg.Join, t, log)
	if err != nil {
		return err
	}
	return cfg.CheckAgainst(info)
}

// finishRestore does what a restore of a snapshot that was interrupted has left to do.
func finishRestore(dir datadir.Dir, log *slog.Logger) error {
	aside, err := snapshot.Finish(dir)
	if len(aside) > 0 {
		log.Info("an interrupted restore of a snapshot is finished", "aside", aside)
	}
	return err
}

// compose makes the components of both roles and joins them. It changes nothing outside the process.
func compose(cfg *server.Config, dir datadir.Dir, host hostos.Host, log *slog.Logger) (lifecycle.Component, error) {
	arguments := append(nodeArguments(&cfg.Node), passed{"kube-apiserver-arg", &cfg.APIServerArgs},
		passed{"kube-controller-manager-arg", &cfg.ControllerManagerArgs}, passed{"kube-scheduler-arg", &cfg.SchedulerArgs})
	if err := setUpstream(arguments, cfg.Debug, host, log); err != nil {
		return nil, err
	}
	found := len(cfg.NodeIPs) == 0
	var err error
	if cfg.NodeIPs, err = nodeAddresses(cfg.NodeIPs, cfg.ClusterCIDRs, cfg.ServiceCIDRs); err != nil {
		return nil, err
	}
	transport := &inproc.Transport{}
	publishDNS := func(ctx context.Context, node string, addrs []netip.Addr) error {
		return dns.PublishEndpoints(ctx, transport.Config(server.Admin(), "clusterd/dns"), node, addrs, agent.DNSPort)
	}
	certs := pki.Dir(dir.ServerTLS())
	srv, err := server.New(*cfg, server.Deps{
		Dir: dir, PKI: certs, Transport: transport, PublishDNS: publishDNS, OwnLinks: agent.Links, Version: cli.Version(), Log: log,
		NodeIPs: func() []netip.Addr { return currentAddresses(cfg.NodeIPs, found) }, AddressChanges: hostos.AddressChanges,
	})
	if err != nil {
		return nil, err
	}
	if err := srv.ShowMetrics(); err != nil {
		return nil, err
	}
	if cfg.DisableAgent {
		return lifecycle.Sequence("clusterd", srv.API(), lifecycle.Parallel("cluster", srv.Loops()...)), nil
	}
	programs, err := bundle.Locate(dir.Payload())
	if err != nil {
		return nil, err
	}
	conf := agentConfig(*cfg, host, srv, certs)
	conf.FollowIPs = found
	node, err := agent.New(conf, agent.Deps{
		Dir: dir, Host: host, Bundle: programs, API: transport.Config, Log: log,
		PublishDNS: func(ctx context.Context, addrs []netip.Addr, _ int) error {
			return publishDNS(ctx, cfg.NodeName, addrs)
		},
	})
	if err != nil {
		return nil, err
	}
	return lifecycle.Sequence("clusterd",
		lifecycle.Parallel("base", srv.API(), lifecycle.Sequence("runtime", payload(dir), node.Runtime())),
		lifecycle.Parallel("cluster", append(srv.Loops(), node.Loops()...)...)), nil
}

func agentConfig(cfg server.Config, host hostos.Host, srv *server.Server, certs pki.Dir) agent.Config {
	c := nodeConfig(cfg.Node, host)
	c.Backend = cfg.FlannelBackend
	c.ClusterCIDRs, c.ServiceCIDRs = cfg.ClusterCIDRs, cfg.ServiceCIDRs
	c.ClusterDNS, c.ClusterDomain = cfg.ClusterDNS, cfg.ClusterDomain
	c.DNS = !slices.Contains(cfg.Disable, "dns")
	c.KubeletWait = srv.ControllersBuilt()
	c.Files = agent.Files(server.LocalNodeFiles(certs))
	return c
}

// listeners are the ports that the components open.
func listeners(cfg server.Config, host hostos.Host) []hostos.Listener {
	l := []hostos.Listener{{Address: netip.AddrPortFrom(cfg.BindAddress, uint16(cfg.HTTPSListenPort)), Use: "the API server", Flag: "--https-listen-port"}}
	if cfg.DisableAgent {
		return l
	}
	return append(l, nodeListeners(cfg.Node, host)...)
}

// welcome says how to use the cluster.
func welcome(cfg server.Config, after string, log *slog.Logger) {
	log.Info("the cluster is ready", "after", after, "kubeconfig", cfg.WriteKubeconfig)
	log.Info("use it with: " + os.Args[0] + " kubectl get pods --all-namespaces")
}
