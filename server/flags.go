package server

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/manifests"
)

// Defaults that other commands and the documentation need.
const (
	DefaultConfigFile = datadir.ConfigFile
	DefaultKubeconfig = datadir.Kubeconfig
	DefaultDataDir    = datadir.DefaultRoot
)

// The headings of the server's own flags.
const (
	inAPI       = "API server"
	inDatastore = "Datastore"
	inSnapshots = "Snapshots"
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
		fileFlags(), nodeFlags(), apiFlags(), DatastoreFlags(), networkFlags(), componentFlags(), options.ContainerFlags(), snapshotFlags(), options.MessageFlags(),
	} {
		all = append(all, group...)
	}
	return all
}

func fileFlags() []cli.Flag {
	return append(options.FileFlags("datastore, certificates, images, containers"),
		&cli.StringFlag{Name: "write-kubeconfig", Aliases: []string{"o"}, Category: options.InFiles, Value: DefaultKubeconfig, TakesFile: true,
			Usage: "write the administrator's kubeconfig to `FILE`"},
		&cli.StringFlag{Name: "write-kubeconfig-mode", Category: options.InFiles, Value: "0600",
			Usage: "permissions of the kubeconfig as an octal `MODE`"},
	)
}

func nodeFlags() []cli.Flag {
	return append(options.NodeFlags(),
		&cli.BoolFlag{Name: "disable-agent", Category: options.InNode,
			Usage: "run only the control plane: this machine becomes no node"},
	)
}

func apiFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "token", Aliases: []string{"t"}, Category: inAPI, DefaultText: "made at the first start",
			Usage: "`SECRET` that joining nodes have to show; of a further server, the token from server/server-token in another one's data directory"},
		&cli.StringFlag{Name: "token-file", Category: inAPI, TakesFile: true, Usage: "`FILE` with the secret or token"},
		&cli.StringFlag{Name: "join", Aliases: []string{"server", "s"}, Category: inAPI,
			Usage: "`URL` of a server with the same --datastore-endpoint, https://HOST:6443, that a further one asks at its first start"},
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

// DatastoreFlags are those that say where the datastore is.
func DatastoreFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "datastore-endpoint", Category: inDatastore, DefaultText: "a file in the data directory",
			Usage: "`URL` of the datastore: postgres://, mysql://, nats://, https:// or http:// (etcd, several with commas), sqlite://"},
		&cli.StringFlag{Name: "datastore-cafile", Category: inDatastore, TakesFile: true,
			Usage: "`FILE` with the certificates of authorities that the datastore's certificate is checked by"},
		&cli.StringFlag{Name: "datastore-certfile", Category: inDatastore, TakesFile: true,
			Usage: "`FILE` with the certificate that is shown to the datastore"},
		&cli.StringFlag{Name: "datastore-keyfile", Category: inDatastore, TakesFile: true,
			Usage: "`FILE` with the key of that certificate"},
	}
}

func networkFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "cluster-cidr", Category: options.InNetwork, Value: cli.NewStringSlice("10.42.0.0/16"),
			Usage: "`NETWORK` of the pods, one or one of each family"},
		&cli.StringSliceFlag{Name: "service-cidr", Category: options.InNetwork, Value: cli.NewStringSlice("10.43.0.0/16"),
			Usage: "`NETWORK` of the Services, one or one of each family"},
		&cli.StringFlag{Name: "flannel-backend", Category: options.InNetwork, Value: "vxlan",
			Usage: "how nodes send packets between pods to each other: `NAME` " + strings.Join(backends, ", ")},
		&cli.StringFlag{Name: "service-node-port-range", Category: options.InNetwork, Value: "30000-32767",
			Usage: "`FIRST-LAST` port of Services of the type NodePort"},
		&cli.StringSliceFlag{Name: "cluster-dns", Category: options.InNetwork, DefaultText: "the tenth of each service-cidr, 10.43.0.10",
			Usage: "`ADDRESS` of the cluster's DNS, inside a service-cidr"},
		&cli.StringFlag{Name: "cluster-domain", Category: options.InNetwork, Value: "cluster.local",
			Usage: "DNS `DOMAIN` of the cluster"},
	}, options.NetworkFlags()...)
}

func componentFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "disable", Category: options.InComponents,
			Usage: "do not deploy the packaged add-on `NAME`: " + strings.Join(AddOns(), ", ")},
		&cli.StringFlag{Name: "kube-scheduler-config", Category: options.InComponents, TakesFile: true,
			Usage: "`FILE` with a KubeSchedulerConfiguration, for example for several profiles"},
		options.PassThrough("kube-apiserver-arg", "kube-apiserver"),
		options.PassThrough("kube-controller-manager-arg", "kube-controller-manager"),
		options.PassThrough("kube-scheduler-arg", "kube-scheduler"),
	}, options.ComponentFlags()...)
}
