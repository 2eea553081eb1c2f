// Package cli is the plumbing of clusterd's command line: the application, exit statuses, signals, the logger, and those
// commands that need nothing of the server or the agent.
//
// It promises that a usage or configuration error, and nothing else, ends with exit status 2, that every problem is a
// line of its own on standard error, and that only the main function (and the kubectl command, as kubectl itself does)
// ends the process.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
)

// Exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
)

// New makes the application from its commands. It never ends the process: errors are returned by its Run methods.
func New(commands ...*cli.Command) *cli.App {
	app := &cli.App{
		Name:                      "clusterd",
		Usage:                     "a whole Kubernetes in one executable",
		Version:                   Version(),
		Commands:                  commands,
		Action:                    rootAction,
		OnUsageError:              onUsageError,
		ExitErrHandler:            func(*cli.Context, error) {},
		DisableSliceFlagSeparator: true, // pass-through arguments contain commas
		EnableBashCompletion:      true,
		HideHelpCommand:           true,
	}
	adopt(commands)
	return app
}

// adopt gives every command, which does not inherit them, the application's handlers.
func adopt(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = onUsageError
		c.HideHelpCommand = true
		if c.Action == nil {
			c.Action = groupAction
		}
		adopt(c.Subcommands)
	}
}

// usageError is an error in how a command was called.
type usageError struct {
	message string
	command string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%s (see %s --help)", e.message, e.command)
}

// UsageErrorf is an error in how c's command was called, which ends with exit status 2.
func UsageErrorf(c *cli.Context, format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...), command: commandPath(c)}
}

// NoArguments is a usage error if c has arguments besides its flags.
func NoArguments(c *cli.Context) error {
	if c.NArg() == 0 {
		return nil
	}
	return UsageErrorf(c, "%s takes no argument such as %q", c.Command.Name, c.Args().First())
}

func commandPath(c *cli.Context) string {
	if c.Command == nil || c.Command.HelpName == "" {
		return c.App.Name
	}
	return c.Command.HelpName
}

// rootAction runs when the first word is no command.
func rootAction(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowAppHelp(c)
	}
	return unknownCommand(c)
}

// groupAction runs when a command that only has commands below it is given none of them.
func groupAction(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowSubcommandHelp(c)
	}
	return unknownCommand(c)
}

func unknownCommand(c *cli.Context) error {
	word := c.Args().First()
	return UsageErrorf(c, "there is no command %q, the nearest one is %q", word, config.Nearest(word, commandNames(c)))
}

func commandNames(c *cli.Context) []string {
	var names []string
	for _, sub := range c.Command.Subcommands {
		names = append(names, sub.Name)
	}
	return names
}

// onUsageError names the nearest flag when an unknown one was given.
func onUsageError(c *cli.Context, err error, _ bool) error {
	unknown, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return UsageErrorf(c, "%v", err)
	}
	unknown = strings.TrimLeft(unknown, "-")
	var names []string
	for _, f := range c.Command.Flags {
		names = append(names, f.Names()[0])
	}
	return UsageErrorf(c, "there is no flag --%s, the nearest one is --%s", unknown, config.Nearest(unknown, names))
}

// ExitCode is the status with which the process ends after err.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

// Report writes each line of err, which may be nil, to w with the program's name before it.
func Report(w io.Writer, err error) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "clusterd: %s\n", strings.TrimRight(line, "\n"))
	}
}
