package agent

import (
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/options"
)

// inCluster is the heading of the flags about joining.
const inCluster = "Cluster"

// Command is what the agent command was told by its command line, the environment and the configuration files, with defaults
// filled in and checked.
type Command struct {
	options.Node
	// Join is the URL of a server, https://HOST:PORT. Empty: the one that was joined before.
	Join string
	// Token is what the server lets the node in for. It may be empty when the machine has joined before.
	Token string
	// Balance is the local address at which the node's parts reach the servers.
	Balance netip.AddrPort
}

// Flags are the agent command's flags, new ones with each call since parsing changes them.
func Flags() []cli.Flag {
	var all []cli.Flag
	for _, group := range [][]cli.Flag{
		options.FileFlags("certificates, images, containers"), clusterFlags(), options.NodeFlags(), options.NetworkFlags(),
		options.ComponentFlags(), options.ContainerFlags(), options.MessageFlags(),
	} {
		all = append(all, group...)
	}
	return all
}

func clusterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "join", Aliases: []string{"server", "s"}, Category: inCluster, DefaultText: "the one that was joined before",
			Usage: "`URL` of a server, https://HOST:6443"},
		&cli.StringFlag{Name: "token", Aliases: []string{"t"}, Category: inCluster,
			Usage: "`TOKEN` from server/node-token in the server's data directory or from clusterd token create; needed to join, not to start again"},
		&cli.StringFlag{Name: "token-file", Category: inCluster, TakesFile: true, Usage: "`FILE` with the token"},
		&cli.StringFlag{Name: "lb-server-port", Category: inCluster, Value: "6444",
			Usage: "`PORT` on 127.0.0.1 at which the node's parts reach the servers"},
	}
}

// FromContext merges the command line, the environment and the configuration files and checks the result. It reads files and
// the host name and changes nothing. The error is a *config.Error with every problem found.
func FromContext(c *cli.Context) (Command, error) {
	p := &config.Problems{}
	r := options.Reader{V: config.Load(c, Flags(), p), P: p}
	node := r.Node()
	cmd := Command{
		Node:    node,
		Join:    r.Server("join"),
		Token:   joinToken(r, node.DataDir),
		Balance: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(r.Port("lb-server-port"))),
	}
	return cmd, p.Err()
}

// joinToken reads and checks the token without showing it.
func joinToken(r options.Reader, dataDir string) string {
	dir, _ := datadir.New(dataDir) // Node has said what is wrong with it
	option, text := r.Secret("token", dir.NodeName())
	if text == "" {
		return ""
	}
	if _, err := join.Parse(text); err != nil {
		r.Problem(option, "the token %w", err)
	}
	return text
}
