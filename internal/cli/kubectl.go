package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as kubectl's main package does
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	kubecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"
)

const (
	kubectlName   = "kubectl"
	kubeconfigEnv = "KUBECONFIG"
)

// IsKubectl is whether the executable was called by the name kubectl, through a link.
func IsKubectl(argv0 string) bool { return filepath.Base(argv0) == kubectlName }

// KubectlCommand is upstream's kubectl, which by default uses the kubeconfig that the function names.
func KubectlCommand(kubeconfig func() string) *cli.Command {
	return &cli.Command{
		Name:      kubectlName,
		Usage:     "control the cluster: upstream's kubectl with all its commands",
		ArgsUsage: "[COMMAND] [FLAGS]",
		Description: "Uses the kubeconfig that --kubeconfig or KUBECONFIG names, else the one that clusterd server writes,\n" +
			"which only root can read unless --write-kubeconfig-mode says otherwise.\n" +
			"A link named kubectl to the executable does the same.",
		SkipFlagParsing: true,
		HideHelp:        true,
		Action: func(c *cli.Context) error {
			return Kubectl(c.Args().Slice(), kubeconfig())
		},
	}
}

// Kubectl runs kubectl with args, which do not begin with its name, on standard input and output. Like kubectl itself it
// ends the process with kubectl's status when the command fails.
func Kubectl(args []string, kubeconfig string) error {
	lack := useKubeconfig(args, kubeconfig)
	os.Args = append([]string{kubectlName}, args...) // where kubectl looks for them in several places
	// Without the flags that other parts of Kubernetes in this executable have registered process-wide.
	pflag.CommandLine = pflag.NewFlagSet(kubectlName, pflag.ExitOnError)
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		return fmt.Errorf("set verbosity: %w", err)
	}
	util.CheckErr(kubecli.RunNoErrOutput(newKubectl(lack)))
	return nil
}

// newKubectl is kubectl's own command, except that lack is what it says where it needs a cluster and is configured for none.
func newKubectl(lack error) *cobra.Command {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	// The settings are those of kubectl's default, which it does not export.
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		if isNoCluster(flags, c) {
			c.Wrap(func(http.RoundTripper) http.RoundTripper {
				return noCluster{why: lack, mayGoOn: firstWord(os.Args[1:]) == "version"}
			})
		}
		return c
	})
	return cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args,
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
}

// defaultServer is where kubectl looks for a cluster when it is not configured.
const defaultServer = "http://localhost:8080"

// isNoCluster is whether c leads to defaultServer because nothing says otherwise.
func isNoCluster(flags *genericclioptions.ConfigFlags, c *rest.Config) bool {
	if c.Host != defaultServer || *flags.APIServer != "" {
		return false
	}
	merged, err := flags.ToRawKubeConfigLoader().RawConfig()
	return err == nil && api.IsConfigEmpty(&merged)
}

// noCluster stands for the connection to a cluster. It ends the process at the first request, since kubectl would try again
// several times and say each time that it cannot reach an address that nobody has given. Commands that make no request
// never come here. Version goes on: it has printed nothing yet and needs the answer for a part only.
type noCluster struct {
	why     error
	mayGoOn bool
}

func (n noCluster) RoundTrip(*http.Request) (*http.Response, error) {
	if !n.mayGoOn {
		util.CheckErr(n.why)
	}
	return nil, n.why
}

// firstWord is the first argument that is no flag.
func firstWord(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

// useKubeconfig sets KUBECONFIG to path unless the user has chosen or path cannot be read. It returns what to say if no
// cluster is found after that.
func useKubeconfig(args []string, path string) (lack error) {
	if named := os.Getenv(kubeconfigEnv); named != "" {
		return fmt.Errorf("no cluster is configured in %s, which %s names: unset it to use %s, or give another with --kubeconfig", named, kubeconfigEnv, path)
	}
	if namesKubeconfig(args) {
		return errors.New("no cluster is configured in the file that --kubeconfig names")
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no kubeconfig: %s is not set and %s does not exist: start clusterd server, which writes it, or give a kubeconfig with --kubeconfig", kubeconfigEnv, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to read %s: use sudo, or start clusterd server with another --write-kubeconfig-mode, or give a copy with --kubeconfig or %s", path, kubeconfigEnv)
	case err != nil:
		return fmt.Errorf("open kubeconfig: %w", err)
	}
	f.Close()
	if err := os.Setenv(kubeconfigEnv, path); err != nil {
		return fmt.Errorf("set %s: %w", kubeconfigEnv, err)
	}
	return fmt.Errorf("no cluster is configured in %s: remove it and start clusterd server, which writes it", path)
}

func namesKubeconfig(args []string) bool {
	for _, a := range args {
		if a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=") {
			return true
		}
	}
	return false
}
