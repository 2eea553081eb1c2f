package runtime

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/log"
	"github.com/pelletier/go-toml/v2"

	"github.com/clusterd/clusterd/internal/bundle"
	"github.com/clusterd/clusterd/internal/testkit"
)

func testConfig() Config {
	return Config{
		Root: "/data/containerd", State: "/run/containerd", Socket: "/run/containerd/containerd.sock", CNIConfDir: "/data/cni",
		Bundle: bundle.Paths{Runc: "/bin/runc", Shim: "/bin/" + shimName, CNIBin: "/bin/cni", PauseImage: "/bin/pause.tar"},
	}
}

func TestContainerdConfig(t *testing.T) {
	c := testConfig()
	c.PauseImage, c.RestrictOOMScoreAdj = DefaultPauseImage, true
	config := c.containerdConfig(overlayfs)
	config.Plugins[ownTransferPlugin] = nil // names the architecture
	got, err := toml.Marshal(config.Plugins)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "plugins.toml", string(got))
}

func TestConfigIsChecked(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"relative root":       {func(c *Config) { c.Root = "data" }, "Root"},
		"no socket":           {func(c *Config) { c.Socket = "" }, "Socket"},
		"no runc":             {func(c *Config) { c.Bundle.Runc = "" }, "Bundle.Runc"},
		"long state":          {func(c *Config) { c.State = "/run/" + strings.Repeat("x", maxState) }, "longer"},
		"unknown snapshotter": {func(c *Config) { c.Snapshotter = "zfs" }, "zfs"},
		"other shim":          {func(c *Config) { c.Bundle.Shim = "/bin/shim" }, shimName},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig()
			row.change(&c)
			if _, err := New(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error is %v, want one with %q", err, row.want)
			}
		})
	}
	if _, err := New(testConfig(), slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a good configuration is refused: %v", err)
	}
}

func TestLogs(t *testing.T) {
	for name, row := range map[string]struct {
		log   func(*log.Entry)
		debug bool
		want  string
	}{
		"warning":              {log: func(e *log.Entry) { e.WithField("id", "a").Warn("odd") }, want: `level=WARN msg=odd id=a`},
		"error":                {log: func(e *log.Entry) { e.WithError(errors.New("why")).Error("bad") }, want: `level=ERROR msg=bad error=why`},
		"information":          {log: func(e *log.Entry) { e.Info("fine") }},
		"information, debug":   {log: func(e *log.Entry) { e.Info("fine") }, debug: true, want: `level=INFO msg=fine`},
		"what CRI returns":     {log: func(e *log.Entry) { e.WithError(errors.New("why")).Error(`PullImage "x" failed`) }},
		"a failure of its own": {log: func(e *log.Entry) { e.Error("check failed") }, want: `level=ERROR msg="check failed"`},
		"noise": {log: func(e *log.Entry) {
			e.WithError(errors.New("why")).Error("failed to load cni during init, please check")
		}},
		"what is left of a dead shim": {log: func(e *log.Entry) {
			e.WithField("id", "a").Warn("warnings while cleaning up dead shim")
		}},
		"a task that never was": {log: func(e *log.Entry) {
			e.WithError(errors.New("rpc error: code = NotFound desc = container not created: not found")).Error("failed to delete task")
		}},
		"a task that stays": {log: func(e *log.Entry) { e.WithError(errors.New("busy")).Error("failed to delete task") },
			want: `level=ERROR msg="failed to delete task" error=busy`},
	} {
		t.Run(name, func(t *testing.T) {
			previous := log.L
			defer func() { log.L = previous }()
			var out bytes.Buffer
			r := &Runtime{host: newHost(nil, slog.New(slog.DiscardHandler)), log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: withoutTime}))}
			r.takeLogs().open(row.debug)
			row.log(log.L)
			if got := strings.TrimSpace(out.String()); got != row.want {
				t.Errorf("logged %q, want %q", got, row.want)
			}
		})
	}
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func TestFatalEndsTheRuntimeAndNotTheProcess(t *testing.T) {
	previous := log.L
	defer func() { log.L = previous }()
	r := &Runtime{host: newHost(nil, slog.New(slog.DiscardHandler)), log: slog.New(slog.DiscardHandler)}
	r.takeLogs()
	why, returned, ended := errors.New("why"), false, make(chan struct{})
	go func() {
		defer close(ended)
		log.L.WithError(why).Fatal("cannot go on")
		returned = true
	}()
	<-ended
	if returned {
		t.Error("the goroutine went on after Fatal")
	}
	if err := r.wait(t.Context()); !errors.Is(err, why) {
		t.Errorf("the runtime ended with %v", err)
	}
}

func TestImageName(t *testing.T) {
	for name, want := range map[string]string{
		"docker.io/library/app:v1": "docker.io/library/app:v1",
		"registry.example/app":     "registry.example/app:latest",
		"app:v1":                   "docker.io/library/app:v1",
		"latest":                   "",
		"v1.0":                     "",
		"Not/Valid":                "",
	} {
		if got := imageName(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}
