package server

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/manifests"
)

// Defaults that other commands and the documentation need.
const (
	DefaultConfigFile = datadir.ConfigFile
	DefaultKubeconfig = datadir.Kubeconfig
	DefaultDataDir    = datadir.DefaultRoot
)

// The headings under which the flags are listed.
const (
	inFiles      = "Files"
	inNode       = "Node"
	inAPI        = "API server"
	inNetwork    = "Network"
	inComponents = "Components"
	inContainers = "Containers"
	inMessages   = "Messages"
)

// AddOns are the names that the option disable knows: the directories of the packaged manifests.
func AddOns() []string {
	var names []string
	entries, _ := manifests.FS.ReadDir(".") // the root of an embedded tree can always be read
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// Flags are the server command's flags, new ones with each call since parsing changes them.
func Flags() []cli.Flag {
	var all []cli.Flag
	for _, group := range [][]cli.Flag{
		fileFlags(), nodeFlags(), apiFlags(), networkFlags(), componentFlags(), runtimeFlags(), messageFlags(),
	} {
		all = append(all, group...)
	}
	return all
}

func fileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: config.FileFlag, Aliases: []string{"c"}, Category: inFiles, Value: DefaultConfigFile, TakesFile: true,
			Usage: "`FILE` with these options as YAML keys; the files FILE.d/*.yaml are read after it"},
		&cli.StringFlag{Name: "data-dir", Aliases: []string{"d"}, Category: inFiles, Value: DefaultDataDir, TakesFile: true,
			Usage: "`DIRECTORY` for everything that is kept: datastore, certificates, images, containers"},
		&cli.StringFlag{Name: "write-kubeconfig", Aliases: []string{"o"}, Category: inFiles, Value: DefaultKubeconfig, TakesFile: true,
			Usage: "write the administrator's kubeconfig to `FILE`"},
		&cli.StringFlag{Name: "write-kubeconfig-mode", Category: inFiles, Value: "0600",
			Usage: "permissions of the kubeconfig as an octal `MODE`"},
	}
}

func nodeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", Category: inNode, DefaultText: "the host name in lower case",
			Usage: "`NAME` of this machine's node"},
		&cli.StringSliceFlag{Name: "node-ip", Category: inNode, DefaultText: "the source address of the default route",
			Usage: "`ADDRESS` of the node, at most one of each family, the primary one first"},
		&cli.StringSliceFlag{Name: "node-label", Category: inNode,
			Usage: "give the node the label `KEY=VALUE` when it registers"},
		&cli.StringSliceFlag{Name: "node-taint", Category: inNode,
			Usage: "give the node the taint `KEY=VALUE:EFFECT` when it registers"},
		&cli.BoolFlag{Name: "disable-agent", Category: inNode,
			Usage: "run only the control plane: this machine becomes no node"},
	}
}

func apiFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "token", Aliases: []string{"t"}, Category: inAPI, DefaultText: "made at the first start",
			Usage: "`SECRET` that joining nodes have to show"},
		&cli.StringFlag{Name: "bind-address", Category: inAPI, Value: "0.0.0.0",
			Usage: "`ADDRESS` to listen on; with a loopback one pods need an --advertise-address that leads to it"},
		&cli.StringFlag{Name: "https-listen-port", Category: inAPI, Value: "6443",
			Usage: "`PORT` to listen on"},
		&cli.StringFlag{Name: "advertise-address", Category: inAPI, DefaultText: "the bind address if it is a single one, else the node's",
			Usage: "`ADDRESS` of the API server for the members of the cluster"},
		&cli.StringSliceFlag{Name: "tls-san", Category: inAPI,
			Usage: "further `NAME` or address in the server's certificate"},
	}
}

func networkFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "cluster-cidr", Category: inNetwork, Value: cli.NewStringSlice("10.42.0.0/16"),
			Usage: "`NETWORK` of the pods, one or one of each family"},
		&cli.StringSliceFlag{Name: "service-cidr", Category: inNetwork, Value: cli.NewStringSlice("10.43.0.0/16"),
			Usage: "`NETWORK` of the Services, one or one of each family"},
		&cli.StringFlag{Name: "service-node-port-range", Category: inNetwork, Value: "30000-32767",
			Usage: "`FIRST-LAST` port of Services of the type NodePort"},
		&cli.StringSliceFlag{Name: "cluster-dns", Category: inNetwork, DefaultText: "the tenth of each service-cidr, 10.43.0.10",
			Usage: "`ADDRESS` of the cluster's DNS, inside a service-cidr"},
		&cli.StringFlag{Name: "cluster-domain", Category: inNetwork, Value: "cluster.local",
			Usage: "DNS `DOMAIN` of the cluster"},
		&cli.StringFlag{Name: "resolv-conf", Category: inNetwork, DefaultText: "the host's", TakesFile: true,
			Usage: "`FILE` with the resolvers for names outside the cluster"},
		&cli.StringFlag{Name: "proxy-mode", Category: inNetwork, DefaultText: "nftables where the host has it, else iptables",
			Usage: "how Services are realised: `MODE` " + strings.Join(proxyModes, " or ")},
	}
}

func componentFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "disable", Category: inComponents,
			Usage: "do not deploy the packaged add-on `NAME`: " + strings.Join(AddOns(), ", ")},
		&cli.StringFlag{Name: "kube-scheduler-config", Category: inComponents, TakesFile: true,
			Usage: "`FILE` with a KubeSchedulerConfiguration, for example for several profiles"},
		passThrough("kube-apiserver-arg", "kube-apiserver"),
		passThrough("kube-controller-manager-arg", "kube-controller-manager"),
		passThrough("kube-scheduler-arg", "kube-scheduler"),
		passThrough("kubelet-arg", "kubelet"),
		passThrough("kube-proxy-arg", "kube-proxy"),
	}
}

func passThrough(name, component string) cli.Flag {
	return &cli.StringSliceFlag{Name: name, Category: inComponents, Usage: "give " + component + " its own flag `KEY=VALUE`"}
}

func runtimeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pod-manifest-path", Category: inContainers, DefaultText: "agent/pod-manifests in the data directory", TakesFile: true,
			Usage: "`PATH` of the directory with the static pods' manifests"},
		&cli.StringFlag{Name: "pod-manifest-url", Category: inContainers,
			Usage: "`URL` that serves the manifests of further static pods"},
		&cli.StringFlag{Name: "pause-image", Category: inContainers, DefaultText: "the one in the executable",
			Usage: "`IMAGE` of the pods' sandbox container"},
		&cli.StringFlag{Name: "snapshotter", Category: inContainers, DefaultText: "overlayfs where it works, else native",
			Usage: "how images are unpacked: `NAME` " + strings.Join(snapshotters, " or ")},
	}
}

func messageFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "debug", Category: inMessages, Usage: "say more"},
		&cli.StringFlag{Name: "log-format", Category: inMessages, Value: "text",
			Usage: "`FORMAT` of the messages: " + strings.Join(logFormats, " or ")},
	}
}
