package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	"k8s.io/component-base/version"
)

const kubernetes = "k8s.io/kubernetes"

// parts are the modules of which the version command tells the version.
var parts = []struct{ name, module string }{
	{"Kubernetes", kubernetes},
	{"containerd", "github.com/containerd/containerd/v2"},
	{"kine", "github.com/k3s-io/kine"},
	{"SQLite", "modernc.org/sqlite"},
	{"CoreDNS", "github.com/coredns/coredns"},
}

// Version is the version that was stamped into the executable, such as v1.37.2+clusterd1. A build without stamps is
// called after its Kubernetes.
func Version() string {
	if v := version.Get().GitVersion; !strings.Contains(v, "$Format") {
		return v
	}
	info, _ := debug.ReadBuildInfo()
	if v := moduleVersion(info, kubernetes); v != "" {
		return v + "+clusterd.unstamped"
	}
	return "unstamped"
}

// VersionCommand prints what the executable was made of.
func VersionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "print the versions of clusterd and its parts",
		Description: "Prints a line each for clusterd, Go, and the parts that are linked into the executable.",
		Action: func(c *cli.Context) error {
			if err := NoArguments(c); err != nil {
				return err
			}
			info, _ := debug.ReadBuildInfo()
			return printVersions(c.App.Writer, info)
		},
	}
}

// printVersions accepts that there is no info, or that a part is not linked.
func printVersions(w io.Writer, info *debug.BuildInfo) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "clusterd\t%s\n", Version())
	if v := version.Get(); !strings.Contains(v.GitCommit, "$Format") {
		fmt.Fprintf(t, "commit\t%s\n", v.GitCommit)
	}
	fmt.Fprintf(t, "Go\t%s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, p := range parts {
		if v := moduleVersion(info, p.module); v != "" {
			fmt.Fprintf(t, "%s\t%s\n", p.name, v)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print versions: %w", err)
	}
	return nil
}

// moduleVersion is that of the module or of what replaces it, empty when it is not linked.
func moduleVersion(info *debug.BuildInfo, path string) string {
	if info == nil {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path != path {
			continue
		}
		if d.Replace != nil {
			return d.Replace.Version
		}
		return d.Version
	}
	return ""
}
