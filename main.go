// Command clusterd is a whole Kubernetes in one executable: the control plane, the node and the tools to use them.
package main

import (
	"context"
	"os"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/agent"
	"github.com/clusterd/clusterd/agent/runtime"
	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/server"
)

func main() { exitNow(run(os.Args)) }

// exitNow ends the process without an orderly stop.
func exitNow(code int) { os.Exit(code) }

// run executes the command line and returns the exit status.
func run(args []string) int {
	var err error
	if cli.IsKubectl(args[0]) {
		err = cli.Kubectl(args[1:], setting("write-kubeconfig")())
	} else {
		err = newApp().RunContext(context.Background(), args)
	}
	cli.Report(os.Stderr, err)
	return cli.ExitCode(err)
}

func newApp() *clilib.App {
	return cli.New(append([]*clilib.Command{
		serverCommand(),
		agentCommand(),
		cli.TokenCommand(cli.Tokens{Setting: func(name string) string { return setting(name)() }}),
		cli.KubectlCommand(setting("write-kubeconfig")),
		cli.ImagesCommand(cli.Images{DataDir: setting("data-dir"), Import: importImages, List: listImages}),
		datastoreCommand(),
		cli.SnapshotCommand(cli.Snapshots{Flags: server.SnapshotFlags, Save: saveSnapshot, List: listSnapshots, Delete: deleteSnapshot, Restore: restoreSnapshot}),
		cli.CompletionCommand(),
		cli.VersionCommand(),
	}, cli.RemovalCommands(cli.Removal{Stop: stopClusterd, Uninstall: uninstall, Ready: isReady, Enter: enterIntoLedger})...)...)
}

// setting is what the server on this machine would take an option to be without a command line. Mistakes in the
// configuration are for the server to report.
func setting(name string) func() string {
	return func() string {
		return config.LoadWithoutCommandLine(server.Flags(), &config.Problems{}).String(name)
	}
}

// configuration is what --help says about where options come from.
const configuration = "Each flag --foo-bar is also the key foo-bar in the configuration file and the variable CLUSTERD_FOO_BAR in the\n" +
	"environment. The command line wins over the environment, and that over the file. A flag that can be repeated is a\n" +
	"list in the file and has an entry a line in the environment; entries can also be separated by commas, except those of\n" +
	"the flags that end in -arg. Other variables that begin with CLUSTERD_ are an error, but for those that Kubernetes sets\n" +
	"in a container for a Service called clusterd."

func serverCommand() *clilib.Command {
	return &clilib.Command{
		Name:  "server",
		Usage: "run a control plane and, unless it is disabled, a node",
		Description: "Runs in the foreground until SIGTERM or SIGINT; a second one ends it at once. Pods keep running and are taken over\n" +
			"by the next start.\n\n" +
			configuration,
		Flags:  server.Flags(),
		Action: serve,
	}
}

// serve runs a server; run_server.go implements runServer.
func serve(c *clilib.Context) error {
	if err := cli.NoArguments(c); err != nil {
		return err
	}
	cfg, err := server.FromContext(c)
	if err != nil {
		return err
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	return runServer(ctx, cfg, cli.NewLogger(os.Stderr, cfg.Debug, cfg.LogFormat))
}

func agentCommand() *clilib.Command {
	return &clilib.Command{
		Name:  "agent",
		Usage: "run a node of a cluster whose server is elsewhere",
		Description: "Joins the cluster with the URL of its server and a token, and runs in the foreground until SIGTERM or SIGINT; a second\n" +
			"one ends it at once. Pods keep running and are taken over by the next start, which needs neither URL nor token.\n\n" +
			configuration,
		Flags:  agent.Flags(),
		Action: serveNode,
	}
}

// serveNode runs an agent; run_agent.go implements runAgent.
func serveNode(c *clilib.Context) error {
	if err := cli.NoArguments(c); err != nil {
		return err
	}
	cfg, err := agent.FromContext(c)
	if err != nil {
		return err
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	return runAgent(ctx, cfg, cli.NewLogger(os.Stderr, cfg.Debug, cfg.LogFormat))
}

func importImages(ctx context.Context, socket, file string) ([]cli.Image, error) {
	return images(runtime.Import(ctx, socket, file))
}

func listImages(ctx context.Context, socket string) ([]cli.Image, error) {
	return images(runtime.List(ctx, socket))
}

func images(all []runtime.Image, err error) ([]cli.Image, error) {
	converted := make([]cli.Image, 0, len(all))
	for _, i := range all {
		converted = append(converted, cli.Image(i))
	}
	return converted, err
}
