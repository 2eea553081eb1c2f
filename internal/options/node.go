// Package options has the flags that the commands server and agent share, and reads their values.
//
// It promises what internal/config does, and that a value which it returns has the form that a component wants: what is
// wrong is collected, each problem with the place that the value comes from.
package options

import (
	"net/netip"
	"strings"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
)

// The headings under which the flags are listed.
const (
	InFiles      = "Files"
	InNode       = "Node"
	InNetwork    = "Network"
	InComponents = "Components"
	InContainers = "Containers"
	InMessages   = "Messages"
)

var (
	proxyModes   = []string{"nftables", "iptables"}
	snapshotters = []string{"overlayfs", "native"}
	logFormats   = []string{"text", "json"}
)

// Node is what a command was told about the node on this machine, with defaults filled in.
type Node struct {
	// DataDir is the absolute directory under which everything persistent lives.
	DataDir string

	// NodeName is the name of this machine's Node object: a DNS name of at most 63 characters.
	NodeName string
	// FormerName is the name that the node in the data directory has had so far, if it is asked to have another one.
	FormerName string
	// NodeIPs are this node's addresses, at most one of each family, the primary one first. Empty: found on the host.
	NodeIPs []netip.Addr
	// NodeExternalIPs are those by which nodes at other sites reach this one, at most one of each family. They need not be
	// this machine's own.
	NodeExternalIPs []netip.Addr
	// NodeLabels and NodeTaints are given to the Node object when it registers.
	NodeLabels map[string]string
	NodeTaints []corev1.Taint

	// ResolvConf is the file with the resolvers to which names outside the cluster go. Empty: the host's.
	ResolvConf string
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

	// The pass-through arguments have the form key=value without leading dashes, in the order given. An upstream
	// component may know the key or not: only its form was checked.
	KubeletArgs []string
	ProxyArgs   []string

	// Debug turns on debug messages; LogFormat is "text" or "json".
	Debug     bool
	LogFormat string
}

// Node reads the options of the flags in this package.
func (r Reader) Node() Node {
	dataDir := r.Path("data-dir", Required)
	name, former := r.nodeName(dataDir)
	return Node{
		DataDir:         dataDir,
		NodeName:        name,
		FormerName:      former,
		NodeIPs:         r.nodeIPs("node-ip"),
		NodeExternalIPs: r.nodeIPs("node-external-ip"),
		NodeLabels:      r.nodeLabels(),
		NodeTaints:      r.nodeTaints(),
		ResolvConf:      r.Path("resolv-conf", Existing),
		ProxyMode:       r.Choice("proxy-mode", proxyModes, Optional),
		PodManifestPath: r.Path("pod-manifest-path", Optional),
		PodManifestURL:  r.URL("pod-manifest-url"),
		PauseImage:      r.image("pause-image"),
		Snapshotter:     r.Choice("snapshotter", snapshotters, Optional),
		KubeletArgs:     r.Arguments("kubelet-arg"),
		ProxyArgs:       r.Arguments("kube-proxy-arg"),
		Debug:           r.V.Bool("debug"),
		LogFormat:       r.Choice("log-format", logFormats, Required),
	}
}

// FileFlags are the configuration file and the data directory, which holds what.
func FileFlags(what string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: config.FileFlag, Aliases: []string{"c"}, Category: InFiles, Value: datadir.ConfigFile, TakesFile: true,
			Usage: "`FILE` with these options as YAML keys; the files FILE.d/*.yaml are read after it"},
		&cli.StringFlag{Name: "data-dir", Aliases: []string{"d"}, Category: InFiles, Value: datadir.DefaultRoot, TakesFile: true,
			Usage: "`DIRECTORY` for everything that is kept: " + what},
	}
}

// NodeFlags say which node this machine is.
func NodeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", Category: InNode, DefaultText: "the one it has had before, at first the host name in lower case",
			Usage: "`NAME` of this machine's node"},
		&cli.StringSliceFlag{Name: "node-ip", Category: InNode, DefaultText: "the source address of the default route",
			Usage: "`ADDRESS` of the node, at most one of each family, the primary one first"},
		&cli.StringSliceFlag{Name: "node-external-ip", Category: InNode,
			Usage: "`ADDRESS` by which nodes at other sites send packets to this one's pods, at most one of each family"},
		&cli.StringSliceFlag{Name: "node-label", Category: InNode,
			Usage: "give the node the label `KEY=VALUE` when it registers"},
		&cli.StringSliceFlag{Name: "node-taint", Category: InNode,
			Usage: "give the node the taint `KEY=VALUE:EFFECT` when it registers"},
	}
}

// NetworkFlags say how the node reaches others.
func NetworkFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "resolv-conf", Category: InNetwork, DefaultText: "the host's", TakesFile: true,
			Usage: "`FILE` with the resolvers for names outside the cluster"},
		&cli.StringFlag{Name: "proxy-mode", Category: InNetwork, DefaultText: "nftables where the host has it, else iptables",
			Usage: "how Services are realised: `MODE` " + strings.Join(proxyModes, " or ")},
	}
}

// ComponentFlags hand flags on to the node's components.
func ComponentFlags() []cli.Flag {
	return []cli.Flag{PassThrough("kubelet-arg", "kubelet"), PassThrough("kube-proxy-arg", "kube-proxy")}
}

// PassThrough is a flag whose values are flags of a component.
func PassThrough(name, component string) cli.Flag {
	return &cli.StringSliceFlag{Name: name, Category: InComponents, Usage: "give " + component + " its own flag `KEY=VALUE`"}
}

// ContainerFlags say what the node runs, and how.
func ContainerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pod-manifest-path", Category: InContainers, DefaultText: "agent/pod-manifests in the data directory", TakesFile: true,
			Usage: "`PATH` of the directory with the static pods' manifests"},
		&cli.StringFlag{Name: "pod-manifest-url", Category: InContainers,
			Usage: "`URL` that serves the manifests of further static pods"},
		&cli.StringFlag{Name: "pause-image", Category: InContainers, DefaultText: "the one in the executable",
			Usage: "`IMAGE` of the pods' sandbox container"},
		&cli.StringFlag{Name: "snapshotter", Category: InContainers, DefaultText: "overlayfs where it works, else native",
			Usage: "how images are unpacked: `NAME` " + strings.Join(snapshotters, " or ")},
	}
}

// MessageFlags say what is logged.
func MessageFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "debug", Category: InMessages, Usage: "say more"},
		&cli.StringFlag{Name: "log-format", Category: InMessages, Value: "text",
			Usage: "`FORMAT` of the messages: " + strings.Join(logFormats, " or ")},
	}
}
