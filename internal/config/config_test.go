package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
)

func flags(file string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Value: file},
		&cli.StringFlag{Name: "node-name", Value: "default-name"},
		&cli.StringFlag{Name: "mode"},
		&cli.StringSliceFlag{Name: "cidr", Value: cli.NewStringSlice("10.42.0.0/16")},
		&cli.StringSliceFlag{Name: "arg"},
		&cli.BoolFlag{Name: "debug"},
	}
}

// load runs a command line against a configuration file with text; more are files in its .d directory.
func load(t *testing.T, text string, more map[string]string, args ...string) (*config.Values, error, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, text)
	if more != nil {
		if err := os.Mkdir(file+".d", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range more {
		write(t, filepath.Join(file+".d", name), content)
	}
	v, err := run(t, file, args...)
	return v, err, file
}

func run(t *testing.T, file string, args ...string) (*config.Values, error) {
	t.Helper()
	var v *config.Values
	p := &config.Problems{}
	app := &cli.App{
		Flags: flags(file), DisableSliceFlagSeparator: true,
		Action: func(c *cli.Context) error { v = config.Load(c, flags(file), p); return nil },
	}
	if err := app.RunContext(t.Context(), append([]string{"test"}, args...)); err != nil {
		t.Fatal(err)
	}
	return v, p.Err()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPrecedence(t *testing.T) {
	for _, row := range []struct {
		name       string
		file       string
		env        string
		args       []string
		want       string
		wantPlace  string // FILE stands for the configuration file
		wantIsASet bool
	}{
		{"default", "", "", nil, "default-name", "--node-name", false},
		{"file", "node-name: from-file", "", nil, "from-file", "FILE:1: node-name", true},
		{"environment over file", "node-name: from-file", "from-env", nil, "from-env", "CLUSTERD_NODE_NAME", true},
		{"command line over all", "node-name: from-file", "from-env", []string{"--node-name=cli"}, "cli", "--node-name", true},
		{"empty on the command line is set", "node-name: from-file", "", []string{"--node-name="}, "", "--node-name", true},
		{"last on the command line", "", "", []string{"--node-name=a", "--node-name=b"}, "b", "--node-name", true},
		{"null in the file is unset", "node-name:", "", nil, "default-name", "--node-name", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("CLUSTERD_NODE_NAME", row.env)
			v, err, file := load(t, row.file, nil, row.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.String("node-name"); got != row.want {
				t.Errorf("value %q, want %q", got, row.want)
			}
			if got, want := v.Place("node-name"), strings.Replace(row.wantPlace, "FILE", file, 1); got != want {
				t.Errorf("place %q, want %q", got, want)
			}
			if got := v.IsSet("node-name"); got != row.wantIsASet {
				t.Errorf("set %t, want %t", got, row.wantIsASet)
			}
		})
	}
}

func TestLists(t *testing.T) {
	for _, row := range []struct {
		name            string
		file            string
		more            map[string]string
		env             string
		args            []string
		want, wantSplit []string
	}{
		{name: "unset"},
		{name: "one value in the file", file: "arg: a=1,b=2", want: []string{"a=1,b=2"}, wantSplit: []string{"a=1", "b=2"}},
		{name: "list in the file", file: "arg: [a=1, 0600]", want: []string{"a=1", "0600"}, wantSplit: []string{"a=1", "0600"}},
		{name: "environment has a line each", env: "a=1,b\nc=2\n", want: []string{"a=1,b", "c=2"}, wantSplit: []string{"a=1", "b", "c=2"}},
		{name: "repeated flag", args: []string{"--arg=a=1,b", "--arg", "c=2"}, want: []string{"a=1,b", "c=2"}, wantSplit: []string{"a=1", "b", "c=2"}},
		{name: "command line replaces the file", file: "arg: [a, b]", args: []string{"--arg=c"}, want: []string{"c"}, wantSplit: []string{"c"}},
		{name: "later file replaces", file: "arg: [a]", more: map[string]string{"1.yaml": "arg: [b]", "2.yaml": "arg: [c]", "3.txt": "arg: [d]"}, want: []string{"c"}, wantSplit: []string{"c"}},
		{name: "later file adds", file: "arg: [a]", more: map[string]string{"1.yaml": "arg+: [b]", "2.yaml": "arg+: c"}, want: []string{"a", "b", "c"}, wantSplit: []string{"a", "b", "c"}},
		{name: "alias", file: "arg: &x [a]\ncidr: *x", want: []string{"a"}, wantSplit: []string{"a"}},
		{name: "spaces and empty parts", file: "arg: ' a , ,b,'", want: []string{" a , ,b,"}, wantSplit: []string{"a", "b"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("CLUSTERD_ARG", row.env)
			v, err, _ := load(t, row.file, row.more, row.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.List("arg"); !slices.Equal(got, row.want) {
				t.Errorf("list %q, want %q", got, row.want)
			}
			if got := v.Split("arg"); !slices.Equal(got, row.wantSplit) {
				t.Errorf("split %q, want %q", got, row.wantSplit)
			}
		})
	}
}

func TestListDefault(t *testing.T) {
	v, err, _ := load(t, "", nil)
	if got := v.List("cidr"); err != nil || !slices.Equal(got, []string{"10.42.0.0/16"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestBool(t *testing.T) {
	for _, row := range []struct {
		name, file string
		args       []string
		want       bool
	}{
		{"default", "", nil, false},
		{"file", "debug: true", nil, true},
		{"flag", "", []string{"--debug"}, true},
		{"flag turns the file off", "debug: true", []string{"--debug=false"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			v, err, _ := load(t, row.file, nil, row.args...)
			if err != nil || v.Bool("debug") != row.want {
				t.Errorf("got %t, %v, want %t", v.Bool("debug"), err, row.want)
			}
		})
	}
}

func TestScalarsStayAsWritten(t *testing.T) {
	v, err, _ := load(t, "mode: 0600", nil)
	if got := v.String("mode"); err != nil || got != "0600" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestProblems(t *testing.T) {
	for _, row := range []struct {
		name, file string
		more       map[string]string
		env        map[string]string
		want       []string // FILE stands for the configuration file
	}{
		{"unknown key", "nodename: a", nil, nil, []string{`FILE:1: nodename: unknown key, the nearest known one is node-name`}},
		{"all at once", "mode: [a, b]\nnodename: a\ndebug: maybe\nnode-name: {a: b}\ncidr: [[a]]\nconfig: x\nmode+: a", nil,
			map[string]string{"CLUSTERD_DEBUG": "perhaps"}, []string{
				`CLUSTERD_DEBUG: "perhaps" is neither true nor false`,
				`FILE:4: node-name: takes a value or a list of values, not a mapping`,
				`FILE:5: cidr: entry 1 of the list is not a plain value`,
				`FILE:1: mode: takes one value, not a list of 2`,
				`FILE:2: nodename: unknown key, the nearest known one is node-name`,
				`FILE:3: debug: "maybe" is neither true nor false`,
				`FILE:6: config: can only be set on the command line or in the environment`,
				`FILE:7: mode: is already set in line 1`,
			}},
		{"unknown variables", "", nil, map[string]string{"CLUSTERD_NODE_NMAE": "a", "CLUSTERD_ARGS": "b=secret", "CLUSTERD": "c", "CLUSTERD_EMPTY": ""}, []string{
			"CLUSTERD_ARGS: unknown variable, the nearest known one is CLUSTERD_ARG",
			"CLUSTERD_NODE_NMAE: unknown variable, the nearest known one is CLUSTERD_NODE_NAME",
		}},
		{"variables of scripts and tests", "", nil, map[string]string{"CLUSTERD_RELEASE": "0", "CLUSTERD_BIN": "/bin/clusterd", "CLUSTERD_E2E_KEEP": "always", "CLUSTERD_TEST_NODE": "1"}, nil},
		{"variables of a Service", "", nil, map[string]string{
			"CLUSTERD_SERVICE_HOST": "10.43.0.7", "CLUSTERD_SERVICE_PORT": "443", "CLUSTERD_SERVICE_PORT_HTTPS": "443", "CLUSTERD_PORT": "tcp://10.43.0.7:443",
			"CLUSTERD_PORT_443_TCP": "tcp://10.43.0.7:443", "CLUSTERD_PORT_443_TCP_PROTO": "tcp", "CLUSTERD_PORT_443_TCP_PORT": "443", "CLUSTERD_PORT_443_TCP_ADDR": "fd43::7",
			"CLUSTERD_WEB_SERVICE_HOST": "10.43.0.8", "CLUSTERD_WEB_PORT": "udp://10.43.0.8:53",
		}, nil},
		{"no variables of a Service", "", nil, map[string]string{
			"CLUSTERD_MODE_PORT": "6443", "CLUSTERD_SERVICE_PORT_RANGE": "1-2", "CLUSTERD_SERVICE_HOST": "api.example", "CLUSTERD_PORT_1_TCP_PROTO": "http",
		}, []string{
			"CLUSTERD_MODE_PORT: unknown variable, the nearest known one is CLUSTERD_MODE",
			"CLUSTERD_PORT_1_TCP_PROTO: unknown variable, the nearest known one is CLUSTERD_CIDR",
			"CLUSTERD_SERVICE_HOST: unknown variable, the nearest known one is CLUSTERD_NODE_NAME",
			"CLUSTERD_SERVICE_PORT_RANGE: unknown variable, the nearest known one is CLUSTERD_NODE_NAME",
		}},
		{"adding to a single value", "mode+: a", nil, nil, []string{`FILE:1: mode: takes one value, so nothing can be added with +`}},
		{"second file", "", map[string]string{"a.yaml": "foo: 1"}, nil, []string{`FILE.d/a.yaml:1: foo: unknown key, the nearest known one is arg`}},
		{"no mapping", "- a", nil, nil, []string{"FILE:1: is not a mapping of option names to values"}},
		{"not YAML", "a: [", nil, nil, []string{"FILE: yaml: line 1: did not find expected node content"}},
		{"two documents", "mode: a\n---\nmode: b", nil, nil, []string{"FILE: holds more than one document"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			for k, v := range row.env {
				t.Setenv(k, v)
			}
			_, err, file := load(t, row.file, row.more)
			var want []string
			for _, line := range row.want {
				want = append(want, strings.ReplaceAll(line, "FILE", file))
			}
			if got := lines(err); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestMissingFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := run(t, missing); err != nil {
		t.Errorf("the default file may be missing, got %v", err)
	}
	if _, err := run(t, "", "--config="+missing); err == nil || !strings.Contains(err.Error(), "--config: no such file: "+missing) {
		t.Errorf("a named file may not be missing, got %v", err)
	}
	t.Setenv("CLUSTERD_CONFIG", missing)
	if _, err := run(t, ""); err == nil || !strings.Contains(err.Error(), "CLUSTERD_CONFIG: no such file: "+missing) {
		t.Errorf("a file named in the environment may not be missing, got %v", err)
	}
}

func TestWithoutCommandLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, "node-name: from-file\nmode: x")
	t.Setenv("CLUSTERD_MODE", "from-env")
	p := &config.Problems{}
	v := config.LoadWithoutCommandLine(flags(file), p)
	if v.String("node-name") != "from-file" || v.String("mode") != "from-env" || p.Err() != nil {
		t.Errorf("got %q, %q, %v", v.String("node-name"), v.String("mode"), p.Err())
	}
}

func TestUnsupportedFlag(t *testing.T) {
	p := &config.Problems{}
	config.LoadWithoutCommandLine([]cli.Flag{&cli.IntFlag{Name: "n"}}, p)
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "--n: flags of the type *cli.IntFlag cannot be merged") {
		t.Errorf("got %v", err)
	}
}

func TestJoin(t *testing.T) {
	if err := config.Join(nil, nil); err != nil {
		t.Fatalf("nothing joined is %v", err)
	}
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	err := config.Join(a, nil, config.Join(b, c))
	var e *config.Error
	if !errors.As(err, &e) || !slices.Equal(e.Problems, []error{a, b, c}) {
		t.Errorf("got %v", err)
	}
	if !errors.Is(err, c) || err.Error() != "a\nb\nc" {
		t.Errorf("got %q", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"cluster-cidr", "cluster-dns", "data-dir", "node-name", "service-cidr"}
	for word, want := range map[string]string{
		"cluster-cdir": "cluster-cidr", "datadir": "data-dir", "name": "node-name", "clusterdns": "cluster-dns",
		"service_cidr": "service-cidr", "dir": "data-dir", "node-name": "node-name",
	} {
		if got := config.Nearest(word, names); got != want {
			t.Errorf("nearest to %s is %s, want %s", word, got, want)
		}
	}
	if got := config.Nearest("a", nil); got != "" {
		t.Errorf("nearest of none is %q", got)
	}
}
