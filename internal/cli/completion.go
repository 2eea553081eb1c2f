package cli

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
)

var shells = []string{"bash", "zsh", "fish"}

// scripts holds a file for each of shells. They ask the executable itself for candidates, so that they do not age.
//
//go:embed completion
var scripts embed.FS

// CompletionCommand prints a script for a shell.
func CompletionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes clusterd's commands and flags in a shell",
		ArgsUsage: strings.Join(shells, "|"),
		Description: "For the running shell:  source <(clusterd completion bash)\n" +
			"                        source <(clusterd completion zsh)\n" +
			"                        clusterd completion fish | source",
		Action:       printScript,
		BashComplete: completeShells,
	}
}

func printScript(c *cli.Context) error {
	shell := c.Args().First()
	switch {
	case c.NArg() != 1:
		return UsageErrorf(c, "completion needs the name of one shell: %s", strings.Join(shells, ", "))
	case !slices.Contains(shells, shell):
		return UsageErrorf(c, "there is no completion for %q, the nearest shell is %s", shell, config.Nearest(shell, shells))
	}
	script, err := scripts.ReadFile("completion/" + shell)
	if err != nil {
		return fmt.Errorf("read completion script: %w", err)
	}
	if _, err := c.App.Writer.Write(script); err != nil {
		return fmt.Errorf("print completion script: %w", err)
	}
	return nil
}

func completeShells(c *cli.Context) {
	for _, shell := range shells {
		fmt.Fprintln(c.App.Writer, shell)
	}
}
