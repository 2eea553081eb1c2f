package main

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/clusterd/clusterd/agent"
	"github.com/clusterd/clusterd/agent/join"
	"github.com/clusterd/clusterd/agent/network/overlay"
	"github.com/clusterd/clusterd/agent/tunnel"
	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/lifecycle"
)

// runAgent runs a node of a cluster whose servers are elsewhere, until ctx ends. Everything that can be wrong with the
// configuration or the host is found before anything is changed.
func runAgent(ctx context.Context, cfg agent.Command, log *slog.Logger) error {
	if err := hostos.Notify("STATUS=joining"); err != nil {
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
	if err := setUpstream(nodeArguments(&cfg.Node), cfg.Debug, host, log); err != nil {
		return err
	}
	if err := check(hostos.Preflight(host, hostos.Needs{Node: true, Snapshotter: cfg.Snapshotter}), log); err != nil {
		return err
	}
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // the process ends
	balancer := hostos.Listener{Address: cfg.Balance, Use: "the connections to the servers", Flag: "--lb-server-port"}
	if err := check(hostos.Ports(append(nodeListeners(cfg.Node, host), balancer)), log); err != nil {
		return err
	}
	if err := claim(dir, "", true); err != nil {
		return err
	}
	if err := dir.Prepare(); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { stopInTime(log) })
	limitGarbage()
	go sleepLonger(ctx, log)
	member, err := join.Enter(ctx, join.Config{
		URL: cfg.Join, Token: cfg.Token, NodeName: cfg.NodeName, FormerName: cfg.FormerName, NodeIPs: cfg.NodeIPs, Balance: cfg.Balance, Dir: dir, OwnLinks: agent.Links,
	}, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was told to stop
		}
		return err
	}
	if err := keepName(cfg.Node, dir, log); err != nil {
		return err
	}
	root, err := composeNode(cfg, dir, host, member, log)
	if err != nil {
		return err
	}
	ready := stages(log, dir, func(after string) {
		log.Info("the node is ready", "after", after, "node", cfg.NodeName)
		log.Info("see it on a server with: " + os.Args[0] + " kubectl get nodes")
	})
	return lifecycle.Run(ctx, root, lifecycle.Options{Ready: ready, StopTimeout: stopTimeout, Log: log})
}

// composeNode makes the components of a node.
func composeNode(cfg agent.Command, dir datadir.Dir, host hostos.Host, member *join.Member, log *slog.Logger) (lifecycle.Component, error) {
	info := member.Info()
	found := len(cfg.NodeIPs) == 0
	var err error
	if cfg.NodeIPs, err = nodeAddresses(cfg.NodeIPs, info.ClusterCIDRs, info.ServiceCIDRs); err != nil {
		return nil, err
	}
	programs, err := bundle.Locate(dir.Payload())
	if err != nil {
		return nil, err
	}
	c := nodeConfig(cfg.Node, host)
	c.FollowIPs, c.Backend = found, cmp.Or(info.FlannelBackend, overlay.VXLAN) // an older server names none
	c.ClusterCIDRs, c.ServiceCIDRs = info.ClusterCIDRs, info.ServiceCIDRs
	c.ClusterDNS, c.ClusterDomain, c.DNS = info.ClusterDNS, info.ClusterDomain, info.DNS
	c.Files = agent.Files(member.Files())
	node, err := agent.New(c, agent.Deps{
		Dir: dir, Host: host, Bundle: programs, API: member.API, Log: log,
		PublishDNS: func(context.Context, []netip.Addr, int) error { return nil }, // the server does it for joined nodes
	})
	if err != nil {
		return nil, err
	}
	tunnels := tunnel.New(tunnel.Config{
		Servers: member.Balancer().Servers, Changes: member.Balancer().Changes(), Fallback: member.Fallback(), TLS: member.TLS,
		Allowed: func(address string) bool { return ownAddress(address, node, c.ClusterCIDRs) },
	}, log)
	return lifecycle.Sequence("clusterd",
		lifecycle.Parallel("base", member.Connections(), lifecycle.Sequence("runtime", payload(dir), node.Runtime())),
		lifecycle.Parallel("node", append(append(member.Loops(), tunnels), node.Loops()...)...)), nil
}

// ownAddress is whether a server may connect to an address by way of this node: to the node itself, which pods may share, and to
// pods.
func ownAddress(address string, node *agent.Agent, pods []netip.Prefix) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	own, err := node.Addresses()
	return err == nil && slices.Contains(own, at.Addr()) ||
		slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(at.Addr()) })
}
