package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"github.com/urfave/cli/v2"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as kubectl's main package does
	kubecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
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
		Description: "Uses the kubeconfig that --kubeconfig or KUBECONFIG names, else the one that clusterd server writes.\n" +
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
	if err := useKubeconfig(os.Stderr, args, kubeconfig); err != nil {
		return err
	}
	os.Args = append([]string{kubectlName}, args...) // where kubectl looks for them in several places
	// Without the flags that other parts of Kubernetes in this executable have registered process-wide.
	pflag.CommandLine = pflag.NewFlagSet(kubectlName, pflag.ExitOnError)
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		return fmt.Errorf("set verbosity: %w", err)
	}
	util.CheckErr(kubecli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	return nil
}

// useKubeconfig sets KUBECONFIG to path unless the user has chosen or path is not there. A file that this user may not
// read is named, since what follows would not say why the cluster was not found.
func useKubeconfig(w io.Writer, args []string, path string) error {
	if os.Getenv(kubeconfigEnv) != "" || namesKubeconfig(args) {
		return nil
	}
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintf(w, "clusterd: no permission to read %s: become root, or set %s to a copy of it\n", path, kubeconfigEnv)
		return nil
	case err != nil:
		return fmt.Errorf("open kubeconfig: %w", err)
	}
	f.Close()
	if err := os.Setenv(kubeconfigEnv, path); err != nil {
		return fmt.Errorf("set %s: %w", kubeconfigEnv, err)
	}
	return nil
}

func namesKubeconfig(args []string) bool {
	for _, a := range args {
		if a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=") {
			return true
		}
	}
	return false
}
