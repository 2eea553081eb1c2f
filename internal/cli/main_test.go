package cli_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
)

// asClusterd makes the test binary behave like the executable, with the kubeconfig that kubeconfigEnv names.
const (
	asClusterd    = "CLUSTERD_TEST_AS_CLUSTERD"
	kubeconfigEnv = "CLUSTERD_TEST_KUBECONFIG"
)

func TestMain(m *testing.M) {
	if os.Getenv(asClusterd) == "" {
		os.Exit(m.Run())
	}
	err := newApp(cli.Images{}).RunContext(context.Background(), os.Args)
	cli.Report(os.Stderr, err)
	os.Exit(cli.ExitCode(err))
}

var errServer = errors.New("first line\nsecond line")

// newApp is like clusterd's own application, except that its server fails at once.
func newApp(images cli.Images) *clilib.App {
	serve := func(c *clilib.Context) error {
		if err := cli.NoArguments(c); err != nil {
			return err
		}
		return errServer
	}
	return cli.New(
		&clilib.Command{Name: "server", Usage: "run", Action: serve, Flags: []clilib.Flag{
			&clilib.StringSliceFlag{Name: "node-label"}, &clilib.StringFlag{Name: "node-name"}, &clilib.BoolFlag{Name: "debug"},
		}},
		cli.KubectlCommand(func() string { return os.Getenv(kubeconfigEnv) }),
		cli.ImagesCommand(images),
		cli.SnapshotCommand(fakeSnapshots()),
		cli.CompletionCommand(),
		cli.VersionCommand(),
	)
}

// run returns what a command line prints and its error.
func run(t *testing.T, app *clilib.App, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	app.Writer = &out
	err := app.RunContext(t.Context(), append([]string{"clusterd"}, args...))
	return out.String(), err
}

// program is the path of an executable called clusterd that is this test binary.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "clusterd")
	script := "#!/bin/sh\n" + asClusterd + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// execute runs a command to its end and returns its output and its exit status.
func execute(t *testing.T, env []string, name string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	c := exec.CommandContext(t.Context(), name, args...)
	c.Env = append(os.Environ(), env...)
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}
