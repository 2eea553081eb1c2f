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
	"github.com/clusterd/clusterd/agent/network"
	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/hostos"
	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/nodename"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/timerslack"
	"github.com/clusterd/clusterd/internal/upstream"
)

const (
	// stopTimeout bounds the stop of each component.
	stopTimeout = 4 * time.Second
	// stopDeadline bounds the stop of all: what has not ended by then is left to the end of the process. Nothing is lost by
	// that; a kill is not worse.
	stopDeadline = 9500 * time.Millisecond
)

// garbagePercent is how far the heap may grow over what is live before it is collected. Half of Go's default halves what the
// garbage costs in memory; an idle cluster makes so little of it that the processor does not notice.
const garbagePercent = 50

// stopInTime ends the process if its orderly stop takes too long.
func stopInTime(log *slog.Logger) {
	upstream.Stopping()
	time.AfterFunc(stopDeadline, func() {
		log.Error("stop took too long", "limit", stopDeadline)
		exitNow(1)
	})
}

// limitGarbage keeps memory small, unless the user has chosen with GOGC.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// sleepLonger lets the kernel put wake-ups together while there is little to do.
func sleepLonger(ctx context.Context, log *slog.Logger) {
	if err := timerslack.Follow(ctx); err != nil {
		log.Debug("wake-ups are not put together", "error", err)
	}
}

// passed are the arguments that a component is given by the flag.
type passed struct {
	flag string
	args *[]string
}

// nodeArguments are those of the node's components.
func nodeArguments(node *options.Node) []passed {
	return []passed{{"kubelet-arg", &node.KubeletArgs}, {"kube-proxy-arg", &node.ProxyArgs}}
}

// setUpstream takes what is process-wide out of the pass-through arguments and sets it.
func setUpstream(all []passed, debug bool, host hostos.Host, log *slog.Logger) error {
	var shared upstream.Shared
	p := &config.Problems{}
	for _, c := range all {
		rest, err := shared.TakeShared(c.flag, *c.args)
		p.Add(err)
		*c.args = rest
	}
	if debug {
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

// nodeAddresses are the node's addresses, one of each family that the pods have, unless the user has given them. They may not
// be inside the cluster's own networks.
func nodeAddresses(given []netip.Addr, pods, services []netip.Prefix) ([]netip.Addr, error) {
	if len(given) > 0 {
		return given, nil
	}
	found, err := hostos.NodeAddresses()
	if err != nil {
		return nil, fmt.Errorf("find this machine's address: %w; give one with --node-ip", err)
	}
	var chosen []netip.Addr
	for _, c := range pods {
		for _, a := range found {
			if a.Is4() == c.Addr().Is4() {
				chosen = append(chosen, a)
			}
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("this machine has no address of the family of the pods' network %s: give one with --node-ip", upstream.Join(pods))
	}
	for _, a := range chosen {
		for _, c := range slices.Concat(pods, services) {
			if c.Contains(a) {
				return nil, fmt.Errorf("this machine's address %s is inside %s, which belongs to the cluster: choose other networks with --cluster-cidr and --service-cidr, or another address with --node-ip", a, c)
			}
		}
	}
	return chosen, nil
}

// currentAddresses are those that the host has now, if the first ones were found on it.
func currentAddresses(first []netip.Addr, found bool) []netip.Addr {
	if !found {
		return first
	}
	now, err := hostos.Follow(first)
	if err != nil {
		return first // the next change is looked at again
	}
	return now
}

// proxyMode is how Services work here: as asked, or else by what the host has; empty when it has neither.
func proxyMode(node options.Node, host hostos.Host) string {
	switch {
	case node.ProxyMode != "":
		return node.ProxyMode
	case host.HasNFT:
		return "nftables"
	case host.HasIPTables:
		return "iptables"
	}
	return ""
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

// stages logs a line for each stage, and at the end calls done.
func stages(log *slog.Logger, dir datadir.Dir, done func(after string)) func(string, time.Duration) {
	return func(name string, elapsed time.Duration) {
		seconds := fmt.Sprintf("%.2fs", elapsed.Seconds())
		if name != "clusterd" {
			log.Info("ready: "+name, "after", seconds)
			return
		}
		upstream.Started()
		debug.FreeOSMemory() // a start takes more than what follows
		done(seconds)
		if err := markReady(dir); err != nil {
			log.Warn("not marked as ready", "error", err)
		}
		if err := hostos.Notify("READY=1\nSTATUS=ready"); err != nil {
			log.Warn("service manager not told", "error", err)
		}
	}
}

// keepName writes the node's name down, and says what follows from another one than it had.
func keepName(node options.Node, dir datadir.Dir, log *slog.Logger) error {
	if err := nodename.Keep(dir, node.NodeName); err != nil {
		return fmt.Errorf("keep the node's name: %w", err)
	}
	if node.FormerName != "" {
		log.Warn("the node has another name from now on; the Node of its former name stays NotReady until it is deleted",
			"node", node.NodeName, "former", node.FormerName, "delete", "clusterd kubectl delete node "+node.FormerName)
	}
	return nil
}

// nodeListeners are the ports that the node's components open.
func nodeListeners(node options.Node, host hostos.Host) []hostos.Listener {
	l := []hostos.Listener{kubeletListener(node.KubeletArgs)}
	if proxyMode(node, host) != "" {
		l = append(l, proxyListener(node.ProxyArgs, "metrics-bind-address", "127.0.0.1:10249", "kube-proxy's metrics"),
			proxyListener(node.ProxyArgs, "healthz-bind-address", "127.0.0.1:10256", "kube-proxy's health"))
	}
	return l
}

// payload unpacks the embedded programs.
func payload(dir datadir.Dir) lifecycle.Component {
	return lifecycle.Task("payload", func(context.Context) error {
		if err := network.PrepareNetNS(datadir.NetNS); err != nil {
			return err
		}
		_, err := bundle.Extract(dir.Payload())
		return err
	})
}

// nodeConfig is the part of the node's configuration that does not depend on the role that the process has.
func nodeConfig(node options.Node, host hostos.Host) agent.Config {
	return agent.Config{
		NodeName:     node.NodeName,
		NodeIPs:      node.NodeIPs,
		ExternalIPs:  node.NodeExternalIPs,
		Labels:       node.NodeLabels,
		Taints:       node.NodeTaints,
		ResolvConf:   node.ResolvConf,
		ManifestPath: node.PodManifestPath,
		ManifestURL:  node.PodManifestURL,
		PauseImage:   node.PauseImage,
		Snapshotter:  node.Snapshotter,
		ProxyMode:    proxyMode(node, host),
		KubeletArgs:  node.KubeletArgs,
		ProxyArgs:    node.ProxyArgs,
		Debug:        node.Debug,
	}
}
