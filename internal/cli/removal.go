package cli

import (
	"time"

	"github.com/urfave/cli/v2"
)

const (
	// podGrace is how long pods get to end by themselves.
	podGrace = 10 * time.Second
	// readyLimit is for a node to become Ready.
	readyLimit = 3 * time.Minute
)

// Removal is what the commands do that stop clusterd on this machine and remove it. Each function gets the data directory
// of the command line, which may be empty.
type Removal struct {
	// Stop stops clusterd, and with pods everything that it runs.
	Stop func(c *cli.Context, dataDir string, pods bool, grace time.Duration) error
	// Uninstall removes everything.
	Uninstall func(c *cli.Context, dataDir string, grace time.Duration) error
	// Ready waits until the node is Ready.
	Ready func(c *cli.Context, dataDir string, limit time.Duration) error
	// Enter enters something that was made for clusterd into the ledger.
	Enter func(c *cli.Context, dataDir, kind, name string) error
}

func graceFlag() cli.Flag {
	return &cli.DurationFlag{Name: "grace", Value: podGrace, Usage: "how `LONG` pods get to end by themselves before they are killed"}
}

// grace is the flag's, which is not negative.
func grace(c *cli.Context) (time.Duration, error) {
	g := c.Duration("grace")
	if g < 0 {
		return 0, UsageErrorf(c, "--grace: %s is less than nothing", g)
	}
	return g, nil
}

// RemovalCommands are stop, uninstall, and what installers call.
func RemovalCommands(r Removal) []*cli.Command {
	return []*cli.Command{
		{
			Name: "stop", Usage: "stop clusterd on this machine",
			Description: "Stops the service, or the process that was started by hand. Pods go on, unless --pods is given: then they end too, and\n" +
				"what they had in the kernel is removed, as by a reboot. The next start makes them anew.",
			Flags: []cli.Flag{dataDirFlag(), &cli.BoolFlag{Name: "pods", Usage: "stop all pods of this machine too"}, graceFlag()},
			Action: func(c *cli.Context) error {
				g, err := checked(c)
				if err != nil {
					return err
				}
				return r.Stop(c, c.String("data-dir"), c.Bool("pods"), g)
			},
		},
		{
			Name: "uninstall", Usage: "remove clusterd from this machine, with all pods and all data",
			Description: "Stops everything and removes all that clusterd has made: processes, mounts, network interfaces, routes, packet rules,\n" +
				"control groups, files, the service and the executable, if scripts/install.sh has put them there. The state of the\n" +
				"cluster and snapshots in the data directory are lost. What others have made stays.",
			Flags: []cli.Flag{dataDirFlag(), graceFlag()},
			Action: func(c *cli.Context) error {
				g, err := checked(c)
				if err != nil {
					return err
				}
				return r.Uninstall(c, c.String("data-dir"), g)
			},
		},
		{
			Name: "ready", Usage: "wait until the node on this machine is Ready",
			Description: "Ends with status 1 when it is not after the time given.",
			Flags:       []cli.Flag{dataDirFlag(), &cli.DurationFlag{Name: "timeout", Value: readyLimit, Usage: "how `LONG` to wait"}},
			Action: func(c *cli.Context) error {
				if err := NoArguments(c); err != nil {
					return err
				}
				return r.Ready(c, c.String("data-dir"), c.Duration("timeout"))
			},
		},
		{
			Name: "ledger", Usage: "enter what an installer is going to make", ArgsUsage: "KIND NAME", Hidden: true,
			Flags: []cli.Flag{dataDirFlag()},
			Action: func(c *cli.Context) error {
				if c.NArg() != 2 {
					return UsageErrorf(c, "ledger needs a kind and a name")
				}
				return r.Enter(c, c.String("data-dir"), c.Args().Get(0), c.Args().Get(1))
			},
		},
	}
}

func checked(c *cli.Context) (time.Duration, error) {
	if err := NoArguments(c); err != nil {
		return 0, err
	}
	return grace(c)
}
