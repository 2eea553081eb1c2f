package cli_test

import (
	"strings"
	"testing"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
)

func TestRemovalCommands(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		args, called string
		code         int
	}{
		{"stop", "stop  false 10s", 0},
		{"stop --pods --grace 1m --data-dir /x", "stop /x true 1m0s", 0},
		{"stop everything", "", 2},
		{"stop --grace=-1s", "", 2},
		{"uninstall -d /x", "uninstall /x 10s", 0},
		{"uninstall /x", "", 2},
		{"ready --timeout 1s", "ready  1s", 0},
		{"ledger file /x", "enter  file /x", 0},
		{"ledger file", "", 2},
	} {
		t.Run(row.args, func(t *testing.T) {
			t.Parallel()
			var called []string
			note := func(words ...string) error { called = append(called, strings.Join(words, " ")); return nil }
			app := cli.New(cli.RemovalCommands(cli.Removal{
				Stop: func(_ *clilib.Context, dir string, pods bool, grace time.Duration) error {
					return note("stop", dir, map[bool]string{true: "true", false: "false"}[pods], grace.String())
				},
				Uninstall: func(_ *clilib.Context, dir string, grace time.Duration) error {
					return note("uninstall", dir, grace.String())
				},
				Ready: func(_ *clilib.Context, dir string, limit time.Duration) error {
					return note("ready", dir, limit.String())
				},
				Enter: func(_ *clilib.Context, dir, kind, name string) error { return note("enter", dir, kind, name) },
			})...)
			_, err := run(t, app, strings.Fields(row.args)...)
			if code := cli.ExitCode(err); code != row.code || strings.Join(called, ";") != row.called {
				t.Errorf("called %q with status %d (%v), want %q and %d", called, code, err, row.called, row.code)
			}
		})
	}
}
