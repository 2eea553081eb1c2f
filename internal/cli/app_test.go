package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/config"
)

func TestErrors(t *testing.T) {
	for _, row := range []struct {
		args string
		want string
		code int
	}{
		{"servr", `there is no command "servr", the nearest one is "server" (see clusterd --help)`, 2},
		{"images lst", `there is no command "lst", the nearest one is "list" (see clusterd images --help)`, 2},
		{"server --nodename=a", "there is no flag --nodename, the nearest one is --node-name (see clusterd server --help)", 2},
		{"server --debug=maybe", `invalid boolean value "maybe" for -debug: parse error (see clusterd server --help)`, 2},
		{"server --node-name", "flag needs an argument: -node-name (see clusterd server --help)", 2},
		{"--debug", "there is no flag --debug, the nearest one is --help (see clusterd --help)", 2},
		{"server more", `server takes no argument such as "more" (see clusterd server --help)`, 2},
		{"version more", `version takes no argument such as "more" (see clusterd version --help)`, 2},
		{"images list more", `list takes no argument such as "more" (see clusterd images list --help)`, 2},
		{"images import", "import needs the name of a file (see clusterd images import --help)", 2},
		{"completion", "completion needs the name of one shell: bash, zsh, fish (see clusterd completion --help)", 2},
		{"completion bush", `there is no completion for "bush", the nearest shell is bash (see clusterd completion --help)`, 2},
		{"server", "first line\nsecond line", 1},
	} {
		t.Run(row.args, func(t *testing.T) {
			out, err := run(t, newApp(cli.Images{}), strings.Fields(row.args)...)
			if err == nil || err.Error() != row.want {
				t.Fatalf("got %v, want %s", err, row.want)
			}
			if out != "" {
				t.Errorf("printed %q", out)
			}
			if code := cli.ExitCode(err); code != row.code {
				t.Errorf("exit status %d, want %d", code, row.code)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	for _, row := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{config.Join(errors.New("x")), 2},
		{fmt.Errorf("start: %w", config.Join(errors.New("x"))), 2},
	} {
		if got := cli.ExitCode(row.err); got != row.want {
			t.Errorf("of %v: %d, want %d", row.err, got, row.want)
		}
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	cli.Report(&out, nil)
	cli.Report(&out, config.Join(errors.New("one"), errors.New("two\nthree")))
	if got, want := out.String(), "clusterd: one\nclusterd: two\nclusterd: three\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHelp asks each command, also those further down, for its help.
func TestHelp(t *testing.T) {
	app := newApp(cli.Images{})
	lines := [][]string{{}, {"--help"}, {"images"}}
	var walk func(prefix []string, commands []*clilib.Command)
	walk = func(prefix []string, commands []*clilib.Command) {
		for _, c := range commands {
			path := append(slices.Clone(prefix), c.Name)
			if c.Name != "kubectl" { // it answers itself, see TestKubectl
				lines = append(lines, append(slices.Clone(path), "--help"))
			}
			walk(path, c.Subcommands)
		}
	}
	walk(nil, app.Commands)
	for _, line := range lines {
		out, err := run(t, newApp(cli.Images{}), line...)
		if err != nil || !strings.Contains(out, "USAGE:") {
			t.Errorf("%v: %v\n%s", line, err, out)
		}
	}
}

// TestDescribed wants every command to say what it does, in one line and in full.
func TestDescribed(t *testing.T) {
	for _, c := range newApp(cli.Images{}).Commands[1:] {
		for _, c := range append(c.Subcommands, c) {
			if c.Usage == "" || c.Description == "" {
				t.Errorf("%s is not described", c.Name)
			}
		}
	}
}

func TestCommasStay(t *testing.T) {
	var got []string
	app := cli.New(&clilib.Command{Name: "x", Flags: []clilib.Flag{&clilib.StringSliceFlag{Name: "arg"}},
		Action: func(c *clilib.Context) error { got = c.StringSlice("arg"); return nil }})
	if _, err := run(t, app, "x", "--arg=a=1,b=2", "--arg=c"); err != nil || !slices.Equal(got, []string{"a=1,b=2", "c"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestVersion(t *testing.T) {
	out, err := run(t, newApp(cli.Images{}), "version")
	if err != nil || !strings.HasPrefix(out, "clusterd") || !strings.Contains(out, cli.Version()) || !strings.Contains(out, "\nGo ") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestReference(t *testing.T) {
	app := &clilib.App{Name: "clusterd", Commands: []*clilib.Command{
		{Name: "server", Usage: "serve", Description: "Serves.", Flags: []clilib.Flag{
			&clilib.StringFlag{Name: "data-dir", Aliases: []string{"d"}, Category: "Files", Value: "/data", Usage: "keep it in `DIR`"},
			&clilib.StringSliceFlag{Name: "cidr", Category: "Network", Value: clilib.NewStringSlice("10.42.0.0/16"), Usage: "a|b"},
			&clilib.StringSliceFlag{Name: "label", Category: "Files", Usage: "label"},
			&clilib.BoolFlag{Name: "debug", Category: "Files", Usage: "say more"},
			clilib.HelpFlag,
		}},
		{Name: "images", Usage: "images", Subcommands: []*clilib.Command{
			{Name: "import", Usage: "import", ArgsUsage: "FILE", Flags: []clilib.Flag{&clilib.StringFlag{Name: "to", DefaultText: "here", Usage: "place"}}},
		}},
		{Name: "version", Usage: "version", Description: "a  b"},
	}}
	const want = "# Commands and flags\n\nThis page is made from the code.\n" +
		"\n## clusterd server\n\nServe.\n\n    clusterd server [FLAGS]\n\nServes.\n" +
		"\n### Files\n\n| Flag and key | Environment | Default | Meaning |\n|---|---|---|---|\n" +
		"| `--data-dir`, `-d` | `CLUSTERD_DATA_DIR` | `/data` | keep it in *DIR* |\n" +
		"| `--label` | `CLUSTERD_LABEL` |  | label; can be repeated |\n" +
		"| `--debug` | `CLUSTERD_DEBUG` |  | say more |\n" +
		"\n### Network\n\n| Flag and key | Environment | Default | Meaning |\n|---|---|---|---|\n" +
		"| `--cidr` | `CLUSTERD_CIDR` | `10.42.0.0/16` | a\\|b; can be repeated |\n" +
		"\n## clusterd images\n\nImages.\n\n    clusterd images COMMAND\n" +
		"\n## clusterd images import\n\nImport.\n\n    clusterd images import [FLAGS] FILE\n" +
		"\n| Flag | Default | Meaning |\n|---|---|---|\n| `--to` | here | place |\n" +
		"\n## clusterd version\n\nVersion.\n\n    clusterd version\n\n```\na  b\n```\n"
	var out strings.Builder
	if err := cli.Reference(&out, app, "server"); err != nil || out.String() != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, out.String(), want)
	}
}
